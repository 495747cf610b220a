"""What a constraint permits, token by token: grammars, JSON Schemas and patterns as one automaton over bytes."""
