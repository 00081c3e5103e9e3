"""What a run is bound by: emulators, acting or working."""

from volvox.rollout.pipeline import Times


def shares(times: Times, steps_per_second: float, *, working: str) -> dict[str, float]:
    """What a row of metrics says about where time goes.

    Args:
      times: seconds of each part for a step, nothing overlapping; see `pipeline.timed`.
      steps_per_second: of the loop that overlaps them.
      working: what `work` does, e.g. "learning".

    Returns:
      `share_emulators`, `share_inference` and `share_` + `working`, which add up to 1; and `fraction_of_bound`: the
      loop's rate over that of the parts in turn. Where all of them share the same cores it can hardly be above 1;
      with an accelerator it can.
    """
    total = sum(times)
    return {
        "share_emulators": times.emulators / total,
        "share_inference": times.acting / total,
        f"share_{working}": times.working / total,
        "fraction_of_bound": steps_per_second * total,
    }
