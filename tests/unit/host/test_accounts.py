from __future__ import annotations

import grp
import pwd

import pytest

from agent.errors import Refused
from agent.host import accounts


def test_an_account_has_its_ids_groups_and_home() -> None:
    nobody = accounts.account("nobody")
    assert (nobody.uid, nobody.gid) == pwd.getpwnam("nobody")[2:4]
    assert nobody.gid in nobody.groups
    assert accounts.account("root").home == pwd.getpwuid(0).pw_dir


def test_the_current_account_is_ours() -> None:
    assert accounts.current() == accounts.account("root")


def test_an_owner_is_a_user_with_its_own_or_another_group() -> None:
    nobody = pwd.getpwnam("nobody")
    assert accounts.owner_ids("nobody") == (nobody.pw_uid, nobody.pw_gid)
    assert accounts.owner_ids("root:daemon") == (0, grp.getgrnam("daemon").gr_gid)


@pytest.mark.parametrize("owner", ["no-such-user", "", ":root", "no\0user"])
def test_an_unknown_user_is_refused(owner: str) -> None:
    with pytest.raises(Refused, match="This machine has no user"):
        accounts.owner_ids(owner)


@pytest.mark.parametrize("owner", ["root:no-such-group", "root:"])
def test_an_unknown_group_is_refused(owner: str) -> None:
    with pytest.raises(Refused, match="This machine has no group"):
        accounts.owner_ids(owner)


@pytest.mark.parametrize(
    ("owner", "ids"),
    [("59671", (59671, 59671)), ("59671:7", (59671, 7)), ("root:59671", (0, 59671)), ("4294967294", (2**32 - 2,) * 2)],
)
def test_a_number_is_an_id_that_needs_no_name_here(owner: str, ids: tuple[int, int]) -> None:
    assert accounts.owner_ids(owner) == ids


@pytest.mark.parametrize("owner", ["4294967295", "root:4294967295", "9" * 60])
def test_a_number_that_no_id_can_be_is_refused(owner: str) -> None:
    with pytest.raises(Refused, match="There is no user or group"):
        accounts.owner_ids(owner)
