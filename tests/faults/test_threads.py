"""One algorithm in two threads is refused, in the thread that comes second."""

import threading
import time

import jax
import pytest


@pytest.mark.slow_except("a3c")
@pytest.mark.parametrize("name", ["ga", "a3c"])
def test_a_second_thread_is_refused_and_the_first_goes_on(make, quietly, name):
    algorithm, first, errors = make(name), jax.random.key(0), []
    entered, leave = threading.Event(), threading.Event()

    def monitor(progress):
        entered.set()
        leave.wait(60)
        return False

    def second():
        entered.wait(60)
        for call in (lambda: quietly(algorithm, steps=1), algorithm.close, lambda: algorithm.step(None)):
            try:
                call()
            except RuntimeError as error:
                errors.append(str(error))
        leave.set()

    thread = threading.Thread(target=second)
    thread.start()
    state, _ = algorithm.step(algorithm.init(first), monitor=monitor)
    thread.join()
    assert len(errors) == 3
    assert all("this algorithm is in use in another thread" in error for error in errors)
    algorithm.step(state)
    algorithm.close()


def test_an_algorithm_may_move_from_one_thread_to_another(make, quietly):
    algorithm = make("a3c")
    found = [quietly(algorithm, steps=2).state]
    thread = threading.Thread(target=lambda: found.append(quietly(algorithm, steps=2).state))
    thread.start()
    thread.join()
    one, other = (state.learning.params for state in found)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), one, other))


def test_training_is_refused_while_another_thread_trains(make, quietly):
    """From the first step to the end of the run, not only within a step."""
    algorithm = make("a3c")
    waits = threading.Event()

    def step(state, *, monitor=None):
        waits.set()
        time.sleep(0.2)
        return algorithm.step(state, monitor=monitor)

    thread = threading.Thread(target=lambda: quietly(algorithm._replace(step=step), steps=1))
    thread.start()
    waits.wait(60)
    with pytest.raises(RuntimeError, match="make one algorithm for each thread"):
        quietly(algorithm, steps=1)
    thread.join()
    algorithm.close()
