"""A kernel that runs beside hundreds of others of its own stream is a damaged record."""

from writing import compact, finding_codes, kernel, read

SERIAL = [kernel(f"k{n}", 10 * n, 9, correlation=n) for n in range(400)]


def test_a_kernel_beside_hundreds_of_its_own_stream_is_left_out_with_a_finding():
    content = read(compact([*SERIAL, kernel("late", 5, 3_000, correlation=999)]))
    assert content.height("kernels") == 400
    (finding,) = content.findings
    assert (finding.code, finding.count, finding.touches) == ("impossible-time", 1, ("kernels",))
    assert "overlaps with 100 others" in finding.message


def test_a_kernel_beside_hundreds_of_another_stream_stays():
    content = read(compact([*SERIAL, kernel("nccl", 5, 3_000, stream=8, correlation=999)]))
    assert (content.height("kernels"), finding_codes(content)) == (401, [])


def test_kernels_of_one_graph_may_run_beside_each_other():
    content = read(
        compact([*SERIAL, kernel("a", 5, 3_000, correlation=999), kernel("b", 3_990, 3, correlation=999)])
    )
    assert (content.height("kernels"), finding_codes(content)) == (402, [])


def test_kernels_that_overlap_their_neighbours_stay():
    content = read(compact([kernel(f"k{n}", 10 * n, 500, correlation=n) for n in range(400)]))
    assert (content.height("kernels"), finding_codes(content)) == (400, [])
