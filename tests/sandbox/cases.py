"""Test cases that are programs, written as text: `== name`, then parts with `--` between them."""


def cases(text: str) -> dict[str, tuple[str, ...]]:
    """The parts of every case, by its name."""
    out = {}
    for block in text.split("\n== ")[1:]:
        name, _, content = block.partition("\n")
        out[name] = tuple(part.strip("\n") for part in content.split("\n--\n"))
    return out
