"""The log line of a kernel's first compilation."""

from numba import njit

from app.jobs.compilation import log_compilation


def compile_two() -> None:
    njit(lambda x: x + 1)(1)
    njit(lambda x: x + 2)(1)


def test_the_first_compilation_adds_one_line_to_the_log() -> None:
    lines: list[str] = []
    with log_compilation(lines.append):
        assert lines == []
        compile_two()
    assert len(lines) == 1
    assert __name__ in lines[0]
    compile_two()
    assert len(lines) == 1


def test_a_kernel_that_is_compiled_already_adds_no_line() -> None:
    kernel = njit(lambda x: x + 1)
    kernel(1)
    lines: list[str] = []
    with log_compilation(lines.append):
        kernel(1)
    assert lines == []
