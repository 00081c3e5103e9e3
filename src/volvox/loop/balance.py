"""What a run is bound by: emulators, acting or working."""

from volvox.loop.pipeline import Times


def shares(times: Times, steps_per_second: float, *, working: str) -> dict[str, float]:
    """What a row of metrics says about where time goes.

    Args:
      times: seconds of each part for a step, nothing overlapping; see `pipeline.timed`.
      steps_per_second: of the loop that overlaps them, reset steps included as in `times`.
      working: what `work` does, e.g. "learning".

    Returns:
      `share_emulators`, `share_inference` and `share_` + `working`, which add up to 1; and `speed_over_turns`: the
      loop's rate over that of the parts taking turns. The parts are called from Python, and each call costs some tenths
      of a millisecond: with networks so small that this counts, the parts look slower than they are in the loop.
    """
    total = sum(times)
    return {
        "share_emulators": times.emulators / total,
        "share_inference": times.acting / total,
        f"share_{working}": times.working / total,
        "speed_over_turns": steps_per_second * total,
    }
