"""Trial runs before something is recorded: who waits for the device? Torch's debug mode is imitated, without a GPU."""

import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from dapd.kernels import cuda_graph


@pytest.fixture
def mode(monkeypatch):
    """The imitated debug mode of the process, as a list of one."""
    mode = ["default"]
    monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: mode[0])
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", lambda new: mode.__setitem__(0, new))
    return mode


def wait(mode):
    """What torch does in each mode when an operation waits for the device."""
    if mode[0] == "error":
        raise RuntimeError(cuda_graph.WAITS)
    if mode[0] == "warn":
        warnings.warn(f"{cuda_graph.WAITS} (Triggered internally)", stacklevel=1)


def trial(*work):
    with cuda_graph._no_waiting():
        for one in work:
            one()


def test_a_trial_that_waits_is_refused(mode):
    for _ in range(2):  # and a warning that was shown once is not lost the second time
        with pytest.raises(RuntimeError, match=r"waits for the device.*test_recording\.py:\d+"):
            trial(lambda: wait(mode))
        assert mode == ["default"]


def test_another_thread_may_wait_meanwhile(mode, recwarn):
    with ThreadPoolExecutor(1) as thread:

        def elsewhere():
            thread.submit(wait, mode).result()

        trial(elsewhere)
        with pytest.raises(RuntimeError, match="waits for the device"):
            trial(elsewhere, lambda: wait(mode))
    assert not recwarn.list


def test_other_warnings_are_shown_and_errors_pass(mode):
    with pytest.warns(UserWarning, match="something else"):
        trial(lambda: warnings.warn("something else", stacklevel=1))
    with pytest.raises(KeyError):
        trial(lambda: {}["none"])
    shown = []

    def keep():
        shown.append(warnings.showwarning)

    trial(keep)
    with pytest.warns(UserWarning, match=cuda_graph.WAITS):  # what a trial left behind, by mischance, swallows nothing
        shown[0](UserWarning(cuda_graph.WAITS), UserWarning, __file__, 1)
    assert mode == ["default"]
