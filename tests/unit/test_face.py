"""The package's face: complete, lazy, and honest about what it lacks."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import slipstream

FOLDER = Path(slipstream.__file__).parent


def test_importing_the_package_imports_no_torch():
    code = "import sys, slipstream, slipstream.serve; slipstream.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Oracle'"):
        _ = slipstream.Oracle


def test_the_stub_names_exactly_what_the_face_gives():
    tree = ast.parse((FOLDER / "__init__.pyi").read_text())
    imported = {alias.asname for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert imported | {"__version__"} == set(slipstream.__all__)


def test_the_faces_names_lead_to_what_they_name():
    for name in slipstream.__all__:
        if name != "__version__":
            assert getattr(slipstream, name).__name__ == name
