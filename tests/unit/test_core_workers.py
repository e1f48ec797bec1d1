"""What is read from a core worker's answer besides its plain fields."""

import pytest

from dstack.probes.core_workers import group_asked_for

GROUP = "30135c36f073ea1c1d0e6658967d01000000"


@pytest.mark.parametrize("resources", [[f"CPU_group_{GROUP}"], ["GPU", f"bundle_group_12_{GROUP}"]])
def test_a_task_names_its_placement_group_in_what_it_asks_for(resources: list[str]) -> None:
    assert group_asked_for(resources) == GROUP


@pytest.mark.parametrize("resources", [[], ["CPU", "memory"], ["my_group_1"], ["CPU_group_30135c36"]])
def test_other_resources_name_none(resources: list[str]) -> None:
    assert group_asked_for(resources) is None
