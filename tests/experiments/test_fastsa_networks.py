"""The networks of the FastSA paper."""

import numpy as np
import pytest

from experiments.fastsa.networks import NETWORKS, _relative_places, image_transformer, xcit


@pytest.mark.parametrize(
    ("make", "parameters"),
    [
        (lambda blocks: image_transformer(384, 6, blocks), 22_050_664),
        (lambda blocks: xcit(num_blocks=blocks), 6_716_272),
    ],
)
def test_twelve_blocks_have_as_many_parameters_as_published(make, parameters):
    # ViT-S/16 and XCiT-T12/16; two blocks more than one are enough to know what each of twelve has.
    one, two = (make(blocks).count_params() for blocks in (1, 2))
    assert one + 11 * (two - one) == pytest.approx(parameters, rel=0.006)


def test_every_network_of_the_paper_is_there():
    # Tables 3 to 5 list 13 for images, 4 for text and 8 language models.
    batches = [network.batch_size for network in NETWORKS.values()]
    assert [batches.count(size) for size in (512, 128, 8)] == [13, 4, 8]


def test_relative_places_by_hand():
    places = _relative_places(5)  # a class token, and two rows of two patches
    patches = places[1:, 1:]
    assert patches.tolist() == [[4, 3, 1, 0], [5, 4, 2, 1], [7, 6, 4, 3], [8, 7, 5, 4]]
    assert len(np.unique(places)) == 9 + 3
    assert np.array_equal(patches, _relative_places(4))
