"""What is printed on a terminal: no character of a file controls it."""

import io

from rich.table import Table
from rich.text import Text

from sigmaff.cli.progress import PlainConsole


def test_control_characters_are_not_printed() -> None:
    stream = io.StringIO()
    console = PlainConsole(file=stream, force_terminal=True, color_system=None, width=80)
    hostile = "\x1b]0;title\x07\x1b[2J\x9b31mname\x7f\r"
    console.print(hostile)
    console.print(Text(hostile), soft_wrap=True)
    table = Table("key", "σ in eV/Å")
    table.add_row(hostile, Text(hostile))
    console.print(table)
    printed = stream.getvalue()
    assert printed.count("title") == 4
    assert not set(printed) & {chr(code) for code in (*range(10), *range(11, 32), *range(127, 160))}
    assert "σ in eV/Å" in printed
