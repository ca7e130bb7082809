import pytest
from hypothesis import given
from hypothesis import strategies as st

from joulewise.core.secrecy import masked


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("python t.py --api-key=SECRET123 --lr 3", "python t.py --api-key=*** --lr 3"),
        ("python t.py --api-key SECRET123 --lr 3", "python t.py --api-key *** --lr 3"),
        ("python t.py --hfToken abc", "python t.py --hfToken ***"),
        ("python t.py --db_password hunter2", "python t.py --db_password ***"),
        ("env WANDB_API_KEY=abc python t.py", "env WANDB_API_KEY=*** python t.py"),
        ("python t.py hf_abcdefghijklmnopqrstuv", "python t.py ***"),
        ("python t.py --data s3://me:pw@host/x", "python t.py --data s3://***@host/x"),
        ("python t.py --data s3://me:p@w@host/x", "python t.py --data s3://***@host/x"),
        ("python t.py --db pg://u:p@ss@h/db?password=x", "python t.py --db pg://***@h/db?password=***"),
        ("python t.py trainer.secret=x model.lr=1", "python t.py trainer.secret=*** model.lr=1"),
    ],
)
def test_a_secret_is_masked_and_its_name_stays(typed, kept):
    assert " ".join(masked(typed.split())) == kept


@pytest.mark.parametrize(
    "typed",
    [
        "python train.py --batch 8 --lr 3e-4",
        "python t.py --tokenizer gpt2 --max-tokens 2048 --num-key-value-heads 8 --key-dim 64",
        "python t.py --max-token 2048",
        "python t.py --use-auth --lr 3",
        "token --verbose",
    ],
)
def test_what_is_none_stays_as_it_is(typed):
    assert masked(typed.split()) == typed.split()


@given(st.lists(st.text(), min_size=1))
def test_any_command_keeps_its_length_and_its_program(command):
    assert len(masked(command)) == len(command)
    assert masked(command)[0] == command[0]
