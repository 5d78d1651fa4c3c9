"""Our HER against Stable-Baselines3's TD3 with HER, from end to end on FetchPush-v4.

    python bench/sb3.py [steps] [rounds] [paper | theirs]      # 6000 steps, 3 rounds, paper

Both train one seed at the same sizes (the paper's: batch 512, 400-400; or theirs, the defaults of
Stable-Baselines3's TD3: batch 256, 400-300), an update a step after 1000 steps, four hindsight
goals in five, on the same two CPU cores, each in a process of its own, by turns. Theirs
steps gymnasium-robotics' environment, ours its own of the same name. A line of JSON a round, then
the medians: seconds for all steps, start and compilation included, and steps/s once both learn
(from step 2000 on). Ratios above 1: ours is faster.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import Any

TASK = "FetchPush-v4"
SIZES = {"paper": (512, (400, 400)), "theirs": (256, (400, 300))}
WARMUP, CAPACITY = 1000, 100_000
EVERY = 1000  # steps between two looks at the clock
FROM = 2000  # both are warm by then
CORES = 2


def ours(steps: int, batch: int, hidden: tuple[int, ...]) -> list[float]:
    """Seconds at every look; each of ours includes an evaluation of one episode."""
    import uvd

    with tempfile.TemporaryDirectory() as folder:
        run = uvd.train(
            "her", TASK, preset="default", out=f"{folder}/run", quiet=True, steps=steps,
            eval_every=EVERY, eval_episodes=1, batch=batch, hidden=hidden, updates_per_step=1.0,
            warmup=WARMUP, capacity=CAPACITY, strategy="future", k=4,
        )  # fmt: skip
        return [row["seconds"] for row in run.rows()]


def theirs(steps: int, batch: int, hidden: tuple[int, ...]) -> list[float]:
    """Seconds at every look."""
    import gymnasium
    import gymnasium_robotics
    import numpy as np
    from stable_baselines3 import TD3, HerReplayBuffer
    from stable_baselines3.common.noise import NormalActionNoise

    gymnasium.register_envs(gymnasium_robotics)
    model = TD3(
        "MultiInputPolicy", gymnasium.make(TASK), replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        learning_starts=WARMUP, batch_size=batch, buffer_size=CAPACITY, train_freq=1,
        gradient_steps=1, gamma=0.98, policy_kwargs={"net_arch": list(hidden)},
        action_noise=NormalActionNoise(np.zeros(4), np.full(4, 0.2)), device="cpu", seed=0,
    )  # fmt: skip
    times, begun = [], time.perf_counter()

    def look(*_: Any) -> bool:
        if model.num_timesteps % EVERY == 0:
            times.append(time.perf_counter() - begun)
        return True

    model.learn(steps, callback=look)
    return times


def measure(who: str, steps: int, sizes: str) -> dict[str, float]:
    """One training in a process of its own."""
    begun = time.perf_counter()
    end = subprocess.run(
        [sys.executable, __file__, who, str(steps), sizes],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    seconds = time.perf_counter() - begun
    times = json.loads(end.stdout.splitlines()[-1])
    learning = times[-1] - times[FROM // EVERY - 1]
    return {"seconds": seconds, "steps_s": (steps - FROM) / learning}


def main(steps: int, rounds: int, sizes: str) -> None:
    """By turns, so that what else the machine does meets both."""
    import numpy as np

    if sizes not in SIZES:
        sys.exit(f"sizes are one of {', '.join(SIZES)}, not {sizes}")
    if steps <= FROM or steps % EVERY:
        sys.exit(f"steps = {steps} must be a multiple of {EVERY} above {FROM}")
    try:
        import stable_baselines3  # noqa: F401
    except ImportError:
        sys.exit("Stable-Baselines3 is missing: pip install torch==2.13.0 '.[slow]'")
    found = []
    for _ in range(rounds):
        a, b = measure("ours", steps, sizes), measure("theirs", steps, sizes)
        found.append((a["seconds"], b["seconds"], a["steps_s"], b["steps_s"]))
        names = ("ours_s", "sb3_s", "ours_steps_s", "sb3_steps_s")
        print(json.dumps(dict(zip(names, np.round(found[-1], 1).tolist()))), flush=True)
    x = np.array(found)
    print(json.dumps({
        "steps": steps, "rounds": rounds, "cores": CORES, "sizes": sizes,
        "ratio_end_to_end": round(float(np.median(x[:, 1] / x[:, 0])), 2),
        "ratio_learning": round(float(np.median(x[:, 2] / x[:, 3])), 2),
    }))  # fmt: skip


if __name__ == "__main__":
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES])
    words = sys.argv[1:]
    if words[:1] in (["ours"], ["theirs"]):
        train = {"ours": ours, "theirs": theirs}[words[0]]
        print(json.dumps(train(int(words[1]), *SIZES[words[2]])))
    else:
        steps, rounds, sizes = words + ["6000", "3", "paper"][len(words) :]
        main(int(steps), int(rounds), sizes)
