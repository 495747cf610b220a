"""`localllm --version`: the server's version, and this client's where they differ."""

from localllm import __version__
from localllm.client import Client, NoServerError


def print_versions() -> None:
    """Prints the version of the server that answers, with a warning where there is none or another one."""
    with Client() as client:
        try:
            server_version = client.version()
        except NoServerError:
            print("Warning: could not connect to a running localllm instance")
            print(f"Warning: client version is {__version__}")
            return
    print(f"localllm version is {server_version}")
    if server_version != __version__:
        print(f"Warning: client version is {__version__}")
