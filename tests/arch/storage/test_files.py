"""A file is written where its name leads: through a link, into a pipe."""

import os
import threading
from pathlib import Path

import pytest

from arch.storage.files import write_text
from tokenizer.files import whole_file


def write_whole(path: Path, text: str) -> None:
    with whole_file(path) as temporary:
        temporary.write_text(text)


@pytest.mark.parametrize("write", [write_text, write_whole])
def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path, write):
    """It became a file of its own, and the page that is served stayed the old one."""
    (tmp_path / "served").mkdir()
    (tmp_path / "served" / "page").write_text("old")
    for name in ("page", "made"):
        (tmp_path / name).symlink_to(f"served/{name}")
        write(tmp_path / name, "new")
        assert (tmp_path / name).is_symlink()
        assert (tmp_path / "served" / name).read_text() == "new"
    assert len(list(tmp_path.rglob("*"))) == 5


@pytest.mark.parametrize("write", [write_text, write_whole])
def test_what_is_no_file_is_written_into(tmp_path, write):
    """It became a file: for every process, where it is /dev/null and the user is root."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        seen = []
        reader = threading.Thread(
            target=lambda seen=seen: seen.append((tmp_path / "pipe").read_text()), daemon=True
        )
        reader.start()
        write(tmp_path / name, "new")
        reader.join(5)
        assert seen == ["new"]
    read_end, write_end = os.pipe()
    write(Path(f"/dev/fd/{write_end}"), "new")  # as /dev/stdout in a pipe, and >(...) of a shell
    assert os.read(read_end, 9) == b"new"
    assert (tmp_path / "pipe").is_fifo()
    assert (tmp_path / "link").is_symlink()
    assert len(list(tmp_path.iterdir())) == 2
