"""`localllm serve`: the server in this terminal."""

from localllm import env

VARIABLES = tuple(variable.name for variable in env.VARIABLES)


def command() -> None:
    """Start the server in this terminal."""
    from localllm.server import serve

    serve()
