"""Checks that every method must pass, for use in the tests of any package.

    from caprompt.testing import check_method

    def test_my_method() -> None:
        check_method("my-method")

`check_method` runs every check and raises an AssertionError that names the first one that fails. To see each check as a test of its
own, parametrize over `list_checks()`:

    @pytest.mark.parametrize("check", list_checks(), ids=str)
    def test_my_method(check: Check, tmp_path: Path) -> None:
        check(make_model_factory("my-method", write_backbone(tmp_path / "tiny.safetensors")))

Two attributes of the method's class configure the checks: `check_options` makes training quick, and `check_variants` are the
options to try besides the defaults.
"""

from __future__ import annotations

from caprompt.testing.checks import Check, ModelFactory, check_method, list_checks, make_model_factory
from caprompt.testing.tiny import square, squares, tiny_vit, write_backbone

__all__ = [
    "Check",
    "ModelFactory",
    "check_method",
    "list_checks",
    "make_model_factory",
    "square",
    "squares",
    "tiny_vit",
    "write_backbone",
]
