"""A server decodes the headers of each call as they were, with or without a dynamic table."""

from h2.connection import H2Connection
from hypothesis import given
from hypothesis import strategies as st

from libs.talos.header_encoder import HeaderEncoder

CONSTANT = [(b":method", b"POST"), (b":path", b"/cosi.resource.State/Get"), (b"te", b"trailers")]
HEADERS = st.tuples(st.sampled_from([b"node", b"grpc-timeout", b":authority"]), st.binary(max_size=40))


@given(
    blocks=st.lists(
        st.tuples(st.none() | st.integers(0, 4096), st.lists(HEADERS | st.sampled_from(CONSTANT))),
        max_size=20,
    )
)
def test_each_block_is_decoded_whatever_table_size_the_server_allowed_before(
    blocks: list[tuple[int | None, list[tuple[bytes, bytes]]]],
):
    encoder, decoder = HeaderEncoder(H2Connection().encoder), H2Connection().decoder
    for size, headers in blocks:
        if size is not None:
            encoder.header_table_size = size
            decoder.max_allowed_table_size = size
            assert encoder.header_table_size == size
        assert [tuple(each) for each in decoder.decode(encoder.encode(headers), raw=True)] == headers


def test_equal_headers_have_equal_bytes_in_each_call():
    encoder = HeaderEncoder(H2Connection().encoder)
    first = encoder.encode(CONSTANT)
    encoder.encode([(b"node", b"10.0.0.5")])
    assert encoder.encode(CONSTANT) == first
