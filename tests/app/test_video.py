"""Replays as videos, with and without the package imageio-ffmpeg."""

import sys
from pathlib import Path

import pytest

from app.replay.files import choose_moments, make_mp4
from emtc_core.errors import ConfigError
from tests.app.test_playback import make_episode
from tests.errors import raises
from tests.require import require_package


def test_without_its_package_the_message_names_the_install_command(monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with raises(ConfigError, key="mp4"):
        make_mp4([make_episode(2)])
    with pytest.raises(ConfigError, match="pip install"):
        make_mp4([make_episode(2)])


def test_a_video_has_all_frames_and_an_even_size(tmp_path: Path) -> None:
    ffmpeg = require_package("imageio_ffmpeg")
    path = tmp_path / "x.mp4"
    path.write_bytes(make_mp4([make_episode(2)]))
    n_frames, _ = ffmpeg.count_frames_and_secs(str(path))
    assert n_frames > len(choose_moments(2)[0]), "the last frame is shown longer"
    frames = ffmpeg.read_frames(str(path))
    assert [length % 2 for length in next(frames)["size"]] == [0, 0]
    frames.close()
