# SPDX-FileCopyrightText: The rover-kf authors
# SPDX-License-Identifier: Apache-2.0
"""Lines of text files as samples."""

from __future__ import annotations

import os
import pathlib
import pickle
import tempfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rover_kf import errors
from rover_kf.datasets.text import TextLines

EXAMPLES = settings(deadline=None, derandomize="CI" in os.environ, max_examples=60)
texts = st.lists(st.sampled_from(["", "a", "ö", "\n", "\n\n", "x\r\n", "line\n", "y" * 40]))


@pytest.fixture
def corpus(tmp_path):
    """Three files in two folders, seven lines, one that is no sample."""
    folder = tmp_path / "corpus"
    (folder / "below").mkdir(parents=True)
    (folder / "b.txt").write_bytes(b"three\nfour\r\n\nsix")
    (folder / "a.txt").write_bytes(b"one\ntwo\n")
    (folder / "below" / "c.txt").write_bytes("sieben ß\n".encode())
    (folder / "_SUCCESS").touch()
    return folder


@EXAMPLES
@given(st.lists(texts.map("".join), min_size=1, max_size=3), st.integers(1, 50), st.integers(1, 3))
def test_lines_are_those_of_the_files(contents, block_bytes, cached):
    """Of any texts, blocks and caches: made new, saved and read again."""
    expected = [
        line.removesuffix("\r")
        for text in contents
        for line in text.removesuffix("\n").split("\n")
        if text
    ]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        paths = [pathlib.Path(folder, f"{number}.txt") for number in range(len(contents))]
        for path, text in zip(paths, contents, strict=True):
            path.write_bytes(text.encode())
        options = {"block_bytes": block_bytes, "cached": cached}
        if not expected:
            with pytest.raises(errors.InputError, match="no lines"):
                TextLines(paths, **options)
            return
        made = TextLines(paths, **options)
        saved = [TextLines(paths, index=f"{folder}/index", **options) for _ in range(2)]
        for lines in (made, *saved):
            assert [lines[number] for number in range(len(lines))] == expected
            assert sum(lines.blocks) == len(expected)
            assert lines.fingerprint == made.fingerprint


def test_a_folder_is_read_in_the_order_of_names(corpus):
    """Folders below it too; in another process as well, and with what DataLoader asks for."""
    lines = TextLines(corpus)
    assert lines.__getitems__(range(7)) == [
        *("one", "two", "three", "four", "", "six", "sieben ß"),
    ]
    assert list(lines.blocks) == [2, 3, 1, 1]
    assert pickle.loads(pickle.dumps(lines))[6] == "sieben ß"
    for number in (-1, 7):
        with pytest.raises(IndexError):
            lines[number]


def test_the_fingerprint_is_of_names_and_contents(corpus, tmp_path):
    """Not of times, nor of where the folder is mounted."""
    first = TextLines(corpus).fingerprint
    os.utime(corpus / "a.txt", ns=(1, 1))
    moved = corpus.rename(tmp_path / "elsewhere")
    assert TextLines(moved).fingerprint == first
    (moved / "a.txt").write_bytes(b"one\ntoo\n")
    assert TextLines(moved).fingerprint != first


def test_a_saved_index_is_used_while_files_are_the_same(corpus, tmp_path, caplog):
    """Not when they changed, nor when it is damaged: then it is made again, and that is told."""
    index = tmp_path / "index"
    first = TextLines(corpus, index=index).fingerprint
    written = index.stat().st_mtime_ns
    assert TextLines(corpus, index=index).fingerprint == first
    assert index.stat().st_mtime_ns == written
    assert not caplog.text
    (corpus / "a.txt").write_bytes(b"1\n2\n3\n")
    assert len(TextLines(corpus, index=index)) == 8
    assert "of other files" in caplog.text
    whole = index.read_bytes()
    for damaged in (whole[:-8], whole[:-1] + b"x", b"", b"[]\n", b"{}\n"):
        index.write_bytes(damaged)
        assert TextLines(corpus, index=index)[2] == "3"
        assert index.read_bytes() == whole


def test_a_file_that_changes_under_training_is_an_error(corpus):
    """Lines would be others than those of the checkpoint."""
    lines = TextLines(corpus, cached=1)
    assert lines[0] == "one"
    (corpus / "below" / "c.txt").write_bytes(b"sieben\n")
    with pytest.raises(errors.DatasetReadError, match="changed while the job trains"):
        lines[6]
    (corpus / "b.txt").unlink()
    with pytest.raises(errors.DatasetReadError, match="cannot be opened"):
        lines[2]


def test_bytes_that_are_no_text_are_an_error(corpus):
    """With the place."""
    (corpus / "b.txt").write_bytes(b"good\n\xff\xfe\n")
    lines = TextLines(corpus)
    assert lines[2] == "good"
    with pytest.raises(errors.DatasetReadError, match=r"b.txt: line 1 after byte 0 is no UTF-8"):
        lines[3]


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda _: TextLines("/no/such"), "there is no /no/such"),
        (lambda _: TextLines([]), "no files"),
        (lambda folder: TextLines(folder, endings=[".md"]), "no files that end with .md"),
        (lambda folder: TextLines(folder, cached=0), "cached is 0"),
        (lambda folder: TextLines(folder, block_bytes=0), "block_bytes is 0"),
        (lambda folder: TextLines(folder, index="/no/such/index"), "cannot be written"),
    ],
)
def test_bad_input_is_refused(corpus, made, words):
    """Before training, with what to do."""
    with pytest.raises(errors.InputError, match=words):
        made(corpus)


def test_compressed_files_are_refused(corpus):
    """They cannot be read from the middle."""
    (corpus / "d.txt.gz").touch()
    with pytest.raises(errors.InputError, match="compressed"):
        TextLines(corpus)
