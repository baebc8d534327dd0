"""What a process wrote can be read by others while it lives and after its end."""

import subprocess
import sys

from slipstream.parallel.page import Page, open_page
from slipstream.parallel.stamps import Stage, Stamps, position

CHILD = """
import sys
from slipstream.parallel.stamps import Stage, Stamps
stamps = Stamps()
print(stamps.page.fd, flush=True)
sys.stdin.readline()
stamps.begin(17)
stamps.mark(Stage.VERIFY)
print("done", flush=True)
sys.stdin.readline()
"""


def test_the_last_stamp_of_a_killed_process_can_still_be_read():
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        page = open_page(child.pid, int(child.stdout.readline()))
        assert position(page) == (0, Stage.IDLE)
        print(file=child.stdin, flush=True)
        child.stdout.readline()
        child.kill()
    assert position(page) == (17, Stage.VERIFY)


def test_a_page_that_cannot_be_opened_is_none():
    assert open_page(2**22 + 1, 5) is None
    assert open_page(1, None) is None


def test_without_memory_files_a_page_is_private(monkeypatch):
    monkeypatch.delattr("os.memfd_create")
    page = Page(3)
    assert page.fd is None
    page.integers[2] = 5
    assert list(page.integers) == [0, 0, 5]


def test_stamps_on_a_page_read_as_they_were_written():
    stamps = Stamps()
    stamps.begin(2**40)
    stamps.mark(Stage.ACCEPT)
    assert position(stamps.page.integers) == stamps.read() == (2**40, Stage.ACCEPT)
