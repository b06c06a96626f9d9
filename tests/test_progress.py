"""Bars at a terminal: when they are there, that nothing is left of them, and when there are none."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator
from types import SimpleNamespace

import pytest

from secateur import _bars, _progress
from tests.terminal import START, Terminal, shown

DELAY = _bars.DELAY


class Screen(io.StringIO):
    """A terminal in this process, and a word when something is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.has_text = threading.Event()

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        count = super().write(text)
        self.has_text.set()
        return count


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Screen]:
    """Standard error as a terminal, on which bars are drawn at once."""
    made = Screen()
    streams = SimpleNamespace(stdout=io.StringIO(), stderr=made)
    monkeypatch.setattr(_progress, "sys", streams)
    monkeypatch.setattr(_bars, "sys", streams)
    monkeypatch.setattr(_bars, "DELAY", 0.0)
    monkeypatch.setattr(_bars, "_PAUSE", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "100")
    yield made
    assert (_progress._tasks, _progress._display) == ([], None)


# At a terminal -------------------------------------------------------------------------------------------------------


def test_bar_counts_what_is_over_and_leaves_nothing_behind() -> None:
    code = START + "for _ in progress.track(range(2), 'sorting'): sys.stdin.readline()"
    with Terminal(code) as terminal:
        for number in range(2):
            (line,) = terminal.until("sorting", f" {number}/2 ")
            assert line.split() == ["sorting", line.split()[1], f"{number}/2", "0:00"]
            terminal.answer()
        assert terminal.end() == []
        assert terminal.status == 0


def test_bar_of_bytes_and_task_without_end_say_what_they_are() -> None:
    code = START + (
        "with progress.task('listening'), progress.task('copying', 4_000_000, in_bytes=True) as bar:\n"
        "    bar.advance(1_000_000); sys.stdin.readline()"
    )
    with Terminal(code) as terminal:
        first, second = terminal.until("listening", "copying")
        assert first.split() == ["listening", "0:00"]
        assert second.split()[0] == "copying"
        assert "1.0 MB/4.0 MB" in second
        terminal.answer()
        assert terminal.end() == []


def test_bar_is_of_plain_letters_where_there_are_no_others() -> None:
    code = START + "with progress.task('sorting', 2) as bar:\n    bar.advance(); sys.stdin.readline()"
    with Terminal(code, {"PYTHONIOENCODING": "ascii"}) as terminal:
        (line,) = terminal.until("sorting", " 1/2 ")
        assert "----" in line
        assert line.isascii()
        terminal.answer()
        assert terminal.end() == []


def test_inner_task_is_a_further_line_while_it_lasts() -> None:
    code = START + (
        "with progress.stages(2) as begin:\n"
        "    begin('reading')\n"
        "    with progress.task('parsing', 3): sys.stdin.readline()\n"
        "    begin('writing'); sys.stdin.readline()"
    )
    with Terminal(code) as terminal:
        first, second = terminal.until("parsing")
        assert ("reading" in first, "0/2" in first, "0/3" in second) == (True, True, True)
        terminal.answer()
        (line,) = terminal.until("writing")
        assert "1/2" in line
        terminal.answer()
        assert terminal.end() == []


def test_bars_make_way_for_what_is_printed() -> None:
    code = START + (
        "for number in progress.track(range(2), 'sorting'):\n"
        "    sys.stdin.readline(); sys.stderr.writelines(['one ', 'line\\n'])\n"
        "    print('item', number); print('warned', number, file=sys.stderr)"
    )
    with Terminal(code) as terminal:
        terminal.until("sorting", " 0/2 ")
        terminal.answer()
        assert terminal.until(" 1/2 ")[:-1] == ["one line", "item 0", "warned 0"]
        terminal.answer()
        assert terminal.end() == ["one line", "item 0", "warned 0", "one line", "item 1", "warned 1"]


def test_nothing_is_drawn_beside_a_line_that_others_have_begun() -> None:
    code = START + (
        "looks, draw = threading.Semaphore(0), progress.Display._draw\n"
        "progress.Display._draw = lambda *given: (draw(*given), looks.release())\n"
        "with progress.stages(3) as begin:\n"
        "    begin('first'); sys.stdin.readline()\n"
        "    print('Name? ', end='', flush=True); begin('second')\n"
        "    while looks.acquire(blocking=False): pass\n"
        "    looks.acquire(); looks.acquire(); sys.stdin.readline()\n"
        "    print('Ada'); begin('third'); sys.stdin.readline()"
    )
    with Terminal(code) as terminal:
        terminal.until("first")
        terminal.answer()
        assert terminal.until("Name?") == ["Name?"]
        terminal.answer()
        assert terminal.until("third")[0] == "Name? Ada"
        terminal.answer()
        assert terminal.end() == ["Name? Ada"]
        assert "second" not in terminal.written


def test_output_that_is_no_terminal_gets_what_is_printed_and_no_more() -> None:
    code = START + (
        "before = sys.stdout\n"
        "with progress.task('sorting'):\n"
        "    sys.stdin.readline(); print('item'); assert sys.stdout is before and sys.stderr is not sys.__stderr__\n"
        "assert sys.stderr is sys.__stderr__"
    )
    with Terminal(code, apart=True) as terminal:
        terminal.until("sorting")
        terminal.answer()
        assert terminal.end() == []
        assert terminal.out == "item\n"


@pytest.mark.parametrize("how", ["raised", "interrupted"])
def test_error_and_interruption_leave_a_clean_terminal(how: str) -> None:
    code = START + (
        "def slow():\n"
        "    for _ in progress.track(range(2), 'sorting'): sys.stdin.readline(); raise ValueError('unsortable')\n"
        "slow()"
    )
    with Terminal(code) as terminal:
        terminal.until("sorting")
        (terminal.answer if how == "raised" else terminal.interrupt)()
        lines = terminal.end()
        assert lines[0] == "Traceback (most recent call last):"
        assert lines[-1] == ("ValueError: unsortable" if how == "raised" else "KeyboardInterrupt")
        assert "sorting" not in "".join(line for line in lines if "track" not in line)
        assert not any("0/2" in line for line in lines)


def test_error_ends_the_tasks_that_it_leaves(screen: Screen) -> None:
    @_progress.task("inner")
    def fail() -> None:
        for _ in _progress.track([1, 2], "loop"):
            raise KeyError

    with _progress.task("outer"):
        with pytest.raises(KeyError):
            fail()
        assert [each.what for each in _progress._tasks] == ["outer"]


def test_child_process_has_no_bars_of_its_parent() -> None:
    code = START + (
        "with progress.task('sorting'):\n"
        "    sys.stdin.readline()\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        assert progress._display is None and not progress._tasks and sys.stderr is sys.__stderr__\n"
        "        os._exit(7)\n"
        "    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7"
    )
    with Terminal(code) as terminal:
        terminal.until("sorting")
        terminal.answer()
        assert (terminal.end(), terminal.status) == ([], 0)


# None ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "environment"),
    [
        ("", {"SECATEUR_PROGRESS": "0"}),
        ("progress._silence(1)", {}),
        ("sys.stderr = open(os.devnull, 'w')", {}),
        ("sys.stderr = None", {}),
        ("class Log:\n    def write(self, text): raise AssertionError(text)\nsys.stderr = Log()", {}),
    ],
    ids=["variable", "switch", "file", "no stream", "log"],
)
def test_nothing_is_drawn_and_nothing_imported_where_it_is_not_wanted(before: str, environment: dict[str, str]) -> None:
    code = f"{START}\n{before}\n" + (
        "with progress.task('sorting'), progress.stages(1) as begin:\n"
        "    begin('reading')\n"
        "    assert list(progress.track('ab', 'tracking')) == ['a', 'b']; assert threading.active_count() == 1\n"
        "assert 'rich' not in sys.modules; print('over')"
    )
    with Terminal(code, environment) as terminal:
        assert terminal.end() == ["over"]
        assert terminal.written == "over\r\n"


def test_terminal_that_cannot_move_its_cursor_is_left_alone() -> None:
    code = START + "with progress.task('sorting'):\n    while threading.active_count() > 1: pass\nprint('over')"
    with Terminal(code, {"TERM": "dumb"}) as terminal:
        assert terminal.end() == ["over"]
        assert terminal.written == "over\r\n"


@pytest.mark.parametrize("writes", [0, 1])
def test_terminal_that_is_gone_does_not_matter(writes: int, screen: Screen, monkeypatch: pytest.MonkeyPatch) -> None:
    def write(text: str) -> int:
        if len(texts) == writes:
            ended.set()
            raise OSError("hung up")
        texts.append(text)
        return Screen.write(screen, text)

    texts, ended = list[str](), threading.Event()
    monkeypatch.setattr(screen, "write", write)
    with _progress.stages(2) as begin:
        begin("first")
        assert writes == 0 or screen.has_text.wait(60)
        begin("second")
        assert ended.wait(60)
    assert _progress.sys.stderr is screen


@pytest.mark.parametrize(("seconds", "is_there"), [(0.99, False), (1.0, True)])
def test_bar_is_there_from_the_first_second_on(
    seconds: float, is_there: bool, screen: Screen, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = threading.Semaphore(0)

    def clock() -> float:
        looked.release()
        return now

    now = 100.0
    monkeypatch.setattr(_bars.time, "monotonic", clock)
    monkeypatch.setattr(_bars, "DELAY", DELAY)
    with _progress.task("sorting"):
        now += seconds
        for _ in range(5):
            assert looked.acquire(timeout=60)
        assert screen.has_text.wait(60 if is_there else 0) == is_there
    assert ("sorting" in screen.getvalue()) == is_there
    assert shown(screen.getvalue()) == []


def test_switch_works_as_a_block_and_on_a_function_and_only_there(screen: Screen) -> None:
    @_progress.without_progress()
    def silent() -> bool:
        return _progress._is_wanted()

    assert not silent()
    with _progress.without_progress(), _progress.without_progress():
        assert not _progress._is_wanted()
    assert _progress._is_wanted()
    with pytest.raises(KeyError), _progress.without_progress():
        raise KeyError
    assert _progress._is_wanted()


# What is tracked -----------------------------------------------------------------------------------------------------


class Unsized:
    def __len__(self) -> int:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter(range(5))


@pytest.mark.parametrize(
    ("items", "most", "taken", "total"),
    [
        ([1, 2, 3], None, [1, 2, 3], 3),
        ([1, 2, 3], 2, [1, 2], 2),
        ([1, 2, 3], 4, [1, 2, 3], 3),
        ([], 4, [], None),
        ((n for n in range(5)), 2, [0, 1], None),
        (Unsized(), 2, [0, 1], None),
    ],
    ids=["all", "some", "fewer than asked for", "none", "unknown", "length that raises"],
)
def test_total_is_what_will_be_taken(
    items: Iterable[int], most: int | None, taken: list[int], total: int | None, screen: Screen
) -> None:
    found = []
    for item in _progress.track(items, "taking", most=most):
        found.append(item)
        assert [(each.total, each.done) for each in _progress._tasks] == [(total, len(found) - 1)]
    assert found == taken


def test_loader_has_begun_before_there_is_a_thread(screen: Screen) -> None:
    class Loader:
        def __iter__(self) -> Iterator[int]:
            displays.append(_progress._display)
            return iter([1])

    displays: list[object] = []
    for _ in _progress.track(Loader(), "loading"):
        displays.append(_progress._display)
    assert [display is None for display in displays] == [True, False]


def test_function_that_is_decorated_stays_what_it_is(screen: Screen) -> None:
    @_progress.task("adding")
    def add(one: int, other: int = 1) -> int:
        """Add."""
        names.append([each.what for each in _progress._tasks])
        return one + other

    names: list[list[str]] = []
    assert (add(1), add(1, other=2), add.__name__, add.__doc__) == (2, 3, "add", "Add.")
    assert names == [["adding"]] * 2


def test_tasks_of_several_threads_are_shown_together(screen: Screen) -> None:
    def work(name: str) -> None:
        with _progress.task(name):
            barrier.wait(60)
            assert go.wait(60)

    barrier, go = threading.Barrier(4), threading.Event()
    threads = [threading.Thread(target=work, args=(name,)) for name in ("one", "two", "three")]
    for thread in threads:
        thread.start()
    barrier.wait(60)
    while not {"one", "two", "three"} <= {line.split()[0] for line in shown(screen.getvalue())}:
        assert screen.has_text.wait(60)
        screen.has_text.clear()
    go.set()
    for thread in threads:
        thread.join()
    assert shown(screen.getvalue()) == []
