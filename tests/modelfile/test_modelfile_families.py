"""The Modelfiles of families: each is read, names its model, and writes back what it says."""

import pytest

from localllm.cli.create import read_modelfile
from localllm.errors import ModelfileError
from localllm.modelfile import decode, parse, read, write
from modelfiles import families, family_modelfile


@pytest.mark.parametrize("name", families())
def test_a_family(name: str) -> None:
    content = family_modelfile(name)
    assert content is not None
    instructions = parse(decode(content))
    modelfile = read(instructions)
    assert modelfile.sources == [name] and all(modelfile.parameters.get("stop", ["none needed"]))
    assert parse(write(instructions)) == instructions


def test_a_family_in_place_of_a_file() -> None:
    modelfile, _ = read_modelfile("Llama3.1")
    assert modelfile.sources == ["llama3.1"] and "<|eot_id|>" in modelfile.parameters["stop"]
    with pytest.raises(ModelfileError):
        read_modelfile("no-such-family")
