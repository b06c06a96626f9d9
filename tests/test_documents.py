"""The reader of the pages' code, on which the tests of README and CONTRIBUTING rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.documents import Block, blocks, run

PAGE = """\
# Title

```python
# not a heading
print("a")
```

## Part

```text
a
```
"""


def test_blocks_have_language_text_heading_and_line() -> None:
    assert list(blocks(PAGE)) == [
        Block("python", '# not a heading\nprint("a")\n', "Title", 3),
        Block("text", "a\n", "Part", 10),
    ]


def test_run_returns_what_is_printed(tmp_path: Path) -> None:
    assert run("print('a'); print(2)", tmp_path) == "a\n2\n"


def test_run_raises_with_the_error_when_the_code_fails(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run("1 / 0", tmp_path)


def test_run_raises_when_the_code_warns(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="UserWarning: old"):
        run("import warnings\nwarnings.warn('old')", tmp_path)
