"""Demonstrations of the imitation suite, by experts of another library.

    git clone https://github.com/DLR-RM/rl-trained-agents
    python bench/zoo_demos.py rl-trained-agents suite-demos

The experts are policies of the RL Zoo for Stable-Baselines3, trained on the `-v3` environments.
They act here in the `-v5` ones, by their mean action. Their files are read without PyTorch: a file
of weights is an archive of arrays and a list of their names.
"""

import argparse
import collections
import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import gymnasium
import numpy as np

from uvd.demos.memory import Trajectory
from uvd.demos.write import write_gail

# Name of the file: algorithm and environment of the policy. `second`: by another learner.
EXPERTS = {
    "HalfCheetah-v5": ("sac", "HalfCheetah"),
    "HalfCheetah-v5-second": ("tqc", "HalfCheetah"),
    "Swimmer-v5": ("sac", "Swimmer"),
    "Swimmer-v5-second": ("tqc", "Swimmer"),
    "Walker2d-v5": ("sac", "Walker2d"),
    "Walker2d-v5-second": ("tqc", "Walker2d"),
    "Ant-v5": ("trpo", "Ant"),
}
SETTINGS = {"Ant": {"include_cfrc_ext_in_observation": False}}
FIRST_SEED = 1000  # of the episodes
STORAGES = {"FloatStorage": np.float32, "DoubleStorage": np.float64, "LongStorage": np.int64}

Policy = Callable[[np.ndarray], np.ndarray]


class Weights(pickle.Unpickler):
    """Reads the arrays of a PyTorch archive; nothing else in it is built."""

    def __init__(self, archive: zipfile.ZipFile):
        self.archive, self.root = archive, archive.namelist()[0].split("/")[0]
        super().__init__(io.BytesIO(archive.read(f"{self.root}/data.pkl")))

    def find_class(self, module: str, name: str):
        if name == "_rebuild_tensor_v2":
            return lambda flat, start, shape, *rest: flat[start:][: np.prod(shape)].reshape(shape)
        return STORAGES.get(name) or {"OrderedDict": collections.OrderedDict}[name]

    def persistent_load(self, what):
        _, kind, key, *_ = what
        return np.frombuffer(self.archive.read(f"{self.root}/data/{key}"), kind)


class Ranges(pickle.Unpickler):
    """Reads the numbers of a VecNormalize; every other object is an empty one."""

    class Record:
        def __init__(self, *args):
            pass

    def find_class(self, module: str, name: str):
        if module.startswith("numpy"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        return self.Record


def load_policy(folder: Path, algorithm: str, env: str) -> Policy:
    """The mean action of a policy of the zoo."""
    run = folder / algorithm / f"{env}-v3_1"
    with zipfile.ZipFile(run / f"{env}-v3.zip") as saved:
        weights = Weights(zipfile.ZipFile(io.BytesIO(saved.read("policy.pth")))).load()
    on_policy = algorithm in ("ppo", "trpo")
    names = (
        ("mlp_extractor.policy_net", "action_net") if on_policy else ("actor.latent_pi", "actor.mu")
    )
    kernels = [name for name in weights if name.startswith(names) and name.endswith("weight")]
    layers = [(weights[name], weights[name.removesuffix("weight") + "bias"]) for name in kernels]
    inputs = layers[0][0].shape[1]
    ranges = None
    if (file := run / f"{env}-v3" / "vecnormalize.pkl").exists():
        with file.open("rb") as opened:
            ranges = vars(Ranges(opened).load())["obs_rms"]

    def act(obs: np.ndarray) -> np.ndarray:
        # The zoo's Ant also observes contact forces, which are 0 in the simulator of its day.
        x = np.concatenate([obs, np.zeros(inputs - len(obs))])
        if ranges:
            x = np.clip((x - ranges.mean) / np.sqrt(ranges.var + 1e-8), -10, 10)
        for weight, bias in layers[:-1]:
            x = weight @ x + bias
            x = np.tanh(x) if on_policy else np.maximum(x, 0)
        x = layers[-1][0] @ x + layers[-1][1]
        return np.clip(x, -1, 1) if on_policy else np.tanh(x)

    return act


def play(env: gymnasium.Env, policy: Policy, seed: int) -> Trajectory:
    """An episode."""
    obs, actions, rewards, done = [env.reset(seed=seed)[0]], [], [], False
    while not done:
        actions.append(policy(obs[-1]))
        after, reward, terminated, truncated, _ = env.step(actions[-1])
        obs, done = [*obs, after], terminated or truncated
        rewards.append(reward)
    return Trajectory(*(np.array(x, np.float32) for x in (obs, actions, rewards)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("agents", type=Path, help="the folder rl-trained-agents")
    parser.add_argument("out", type=Path)
    parser.add_argument("--episodes", type=int, default=6)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, (algorithm, env_name) in EXPERTS.items():
        env = gymnasium.make(f"{env_name}-v5", **SETTINGS.get(env_name, {}))
        policy = load_policy(args.agents, algorithm, env_name)
        episodes = [play(env, policy, FIRST_SEED + k) for k in range(args.episodes)]
        write_gail(episodes, args.out / f"{name}.h5")
        returns = [t.reward.sum() for t in episodes]
        print(f"{name}: {algorithm}, mean return {np.mean(returns):.0f} ({min(returns):.0f} to "
              f"{max(returns):.0f})")  # fmt: skip


if __name__ == "__main__":
    main()
