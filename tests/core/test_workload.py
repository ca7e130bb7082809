from joulewise.core.workload import Workload


def test_a_fingerprint_is_stable_and_ignores_the_order_of_facts():
    a = Workload(("python", "train.py"), "NVIDIA H200", 8, {"batch_size": 32, "precision": "bf16"})
    b = Workload(("python", "train.py"), "NVIDIA H200", 8, {"precision": "bf16", "batch_size": 32})
    assert a.fingerprint() == b.fingerprint() == "bf813d87d4d1ee62"


def test_what_runs_and_on_what_both_count():
    base = Workload(("python", "train.py"), "NVIDIA H200")
    others = [
        Workload(("python", "eval.py"), "NVIDIA H200"),
        Workload(("python", "train.py"), "NVIDIA A100"),
        Workload(("python", "train.py"), "NVIDIA H200", 2),
        Workload(("python", "train.py"), "NVIDIA H200", 1, {"batch_size": 32}),
        Workload(("python train.py",), "NVIDIA H200"),
    ]
    assert len({w.fingerprint() for w in [base, *others]}) == 6
