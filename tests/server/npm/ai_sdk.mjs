// Calls of `ai-sdk-ollama` against the daemon at argv[2]; prints what it got as one JSON object.
import { generateText, streamText, tool, embed } from 'ai'
import { createOllama } from 'ai-sdk-ollama'
import { z } from 'zod'

const ollama = createOllama({ baseURL: process.argv[2] })
const model = ollama('m')
const add = tool({ description: 'adds', inputSchema: z.object({ a: z.number() }) })

const whole = await generateText({ model, prompt: 'one two' })
const pieces = []
for await (const piece of streamText({ model, prompt: 'one two' }).textStream) pieces.push(piece)
const called = await generateText({ model, prompt: '!call', tools: { add } })
const { embedding } = await embed({ model: ollama.embedding('m'), value: 'ab' })
console.log(
  JSON.stringify({
    text: whole.text,
    reason: whole.finishReason,
    usage: [whole.usage.inputTokens, whole.usage.outputTokens],
    stream: pieces.join(''),
    call: called.toolCalls.map((call) => [call.toolName, call.input]),
    embedding: embedding.length,
  }),
)
