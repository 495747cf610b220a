"""Automata over bytes, compiled: the states of a pushdown automaton, and which tokens of a vocabulary may follow."""
