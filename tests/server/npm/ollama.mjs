// Calls of npm's `ollama` against the daemon at argv[2]; prints what it got as one JSON object.
import { Ollama } from 'ollama'

const ollama = new Ollama({ host: process.argv[2] })
const messages = (content) => [{ role: 'user', content }]
const add = {
  type: 'function',
  function: { name: 'add', description: 'adds', parameters: { type: 'object', properties: { a: { type: 'integer' } } } },
}
const failure = async (call) => {
  try {
    await call()
    return null
  } catch (error) {
    return { status: error.status_code ?? null, message: error.message }
  }
}

const chunks = []
for await (const part of await ollama.chat({ model: 'm', messages: messages('one two'), stream: true })) chunks.push(part)
const words = []
for await (const part of await ollama.generate({ model: 'm', prompt: 'one two', stream: true })) words.push(part.response)
const called = await ollama.chat({ model: 'm', messages: messages('!call'), tools: [add] })
const found = {
  version: (await ollama.version()).version,
  chat: (await ollama.chat({ model: 'm', messages: messages('one') })).message.content,
  stream: chunks.map((part) => part.message.content),
  done: chunks.at(-1).done,
  generate: words,
  thinking: (await ollama.chat({ model: 'm', messages: messages('!think:hm one'), think: true })).message.thinking,
  call: called.message.tool_calls[0].function,
  loaded: (await ollama.ps()).models.map((model) => model.name),
  embeddings: (await ollama.embed({ model: 'm', input: ['ab', 'c'] })).embeddings.length,
  show: (await ollama.show({ model: 'm' })).capabilities,
  created: (await ollama.create({ model: 'c', from: 'm', system: 's' })).status,
  copied: (await ollama.copy({ source: 'c', destination: 'd' })).status,
  deleted: (await ollama.delete({ model: 'd' })).status,
  listed: (await ollama.list()).models.map((model) => model.name).sort(),
  missing: await failure(() => ollama.chat({ model: 'nope', messages: messages('x') })),
  broken: await failure(async () => {
    for await (const _ of await ollama.generate({ model: 'm', prompt: 'a !error:RunnerError', stream: true }));
  }),
}
console.log(JSON.stringify(found))
