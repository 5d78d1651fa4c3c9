"""Our tasks under another learner: Stable-Baselines3, which `make test-slow` installs."""

import gymnasium
import pytest

import uvd
import uvd.tasks.gym
from uvd.tasks import TASKS

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("name", TASKS)
def test_stable_baselines_checker(name):
    from stable_baselines3.common.env_checker import check_env

    check_env(gymnasium.make(name).unwrapped)


def test_her_of_stable_baselines_learns_to_reach():
    import torch
    from stable_baselines3 import SAC, HerReplayBuffer
    from stable_baselines3.common.evaluation import evaluate_policy

    torch.set_num_threads(1)  # nets this small gain nothing by two, which wait on a busy machine
    model = SAC(
        "MultiInputPolicy",
        gymnasium.make("PointReach-v0"),
        replay_buffer_class=HerReplayBuffer,
        replay_buffer_kwargs={"n_sampled_goal": 4, "goal_selection_strategy": "future"},
        learning_starts=500,
        batch_size=256,
        gamma=0.95,
        learning_rate=1e-3,
        policy_kwargs={"net_arch": [64, 64]},
        device="cpu",
        seed=0,
    )
    model.learn(8_000)
    # The model's own environment is the one it has wrapped in a monitor.
    returns, _ = evaluate_policy(model, model.get_env(), 50, return_episode_rewards=True)
    # A step not at the goal costs one and no way takes 20 steps; chance alone leaves nearly all
    # episodes at -50.
    assert sum(r > -40 for r in returns) >= 30


def test_its_evaluate_policy_takes_a_policy_of_ours(tmp_path):
    from stable_baselines3.common.evaluation import evaluate_policy
    from stable_baselines3.common.monitor import Monitor

    trained = uvd.train("td3", "PointReach-v0", out=tmp_path / "run", steps=2_000, quiet=True)
    env = Monitor(gymnasium.make("PointReach-v0"))
    returns, lengths = evaluate_policy(trained.policy(), env, 5, return_episode_rewards=True)
    assert len(returns) == 5
    assert all(-length <= total <= 0 for total, length in zip(returns, lengths))
