"""An unknown name is answered with the nearest known ones, in one line."""

from uvd.core.errors import UserError, nearest

TASKS = ["PointReach-v0", "PointPush-v0", "CliffWalk-v0", *(f"Other{i}" for i in range(20))]


def test_the_nearest_names_are_listed_first_whatever_their_case():
    error = nearest("pointreach", TASKS, "task")
    assert isinstance(error, UserError)
    assert str(error).startswith("unknown task 'pointreach'; nearest: PointReach-v0")


def test_without_a_near_name_the_first_ones_are_listed():
    text = str(nearest("zzzzzz", TASKS, "task"))
    assert text.endswith("; nearest: " + ", ".join(sorted(TASKS)[:8]))
