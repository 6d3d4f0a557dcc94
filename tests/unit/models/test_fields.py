import subprocess
import sys

import pytest
from transformers import LlamaConfig, Qwen2Config

from laurel.models import fields as room
from laurel.models.fields import config_fields


@pytest.mark.parametrize("kind", [LlamaConfig, Qwen2Config])
def test_every_field_of_the_class_is_known_and_a_mistyped_one_is_not(kind):
    known = config_fields({"model_type": kind.model_type, "of_the_file": 1})
    assert set(kind().to_dict()) <= known
    assert "of_the_file" in known
    assert not {"dropuot", "self", "kwargs"} & known


@pytest.mark.parametrize("published", [{}, {"model_type": "no_such"}, {"model_type": "llama", "auto_map": {}}])
def test_what_the_source_does_not_say_is_left_to_the_class(published):
    assert config_fields(published) is None


def test_the_forms_in_which_a_class_has_fields(tmp_path):
    source = tmp_path / "configuration_x.py"
    source.write_text(
        "class XConfig(PreTrainedConfig):\n"
        "    attribute_map = {'other_name': 'one'}\n"
        "    one: int = 1\n"
        "    def __init__(self):\n        self.two = 2\n        local = 3\n"
        "    @property\n    def three(self):\n        return 3\n"
        "class Other:\n    four: int = 4\n"
    )
    assert room._fields_of(source) == {"attribute_map", "other_name", "one", "two", "three"}
    source = tmp_path / "configuration_y.py"
    source.write_text("class YConfig(XConfig):\n    one: int = 1\n")
    assert room._fields_of(source) is None


def test_transformers_is_not_imported():
    code = (
        "import sys; from laurel.models.fields import config_fields; assert config_fields({'model_type': 'llama'}); "
        "sys.exit('transformers' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
