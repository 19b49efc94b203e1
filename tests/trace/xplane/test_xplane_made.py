"""Profiles with a known answer: asynchronous collectives, loops, steps, groups, and damage."""

from __future__ import annotations

import pytest
from commands import invoke
from made_profiles import (
    Event,
    MadePlane,
    instruction,
    message,
    packed,
    program,
    programs,
    put,
    shape,
    write_profile,
)

import ccl_bench as ccl
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.trace.device_steps import DETECTED
from ccl_bench.trace.formats.xplane.profile import list_devices
from ccl_bench.trace.formats.xplane.reader import read_xplane

F32 = 11
ALL = (87, message((1, message((1, packed(0, 1))))))
"""One group of both devices, as newer compilers write it."""

CHANNEL, GLOBAL = (26, 1), (71, 1)

MADE_START = 1_790_000_000_000_000_000


def read(folder, device="TPU:0"):
    """Return the content of a profile for one of its devices."""
    return read_xplane(folder / "host.xplane.pb", "host.xplane.pb", device)


def spans(content, table="kernels"):
    """Return name, start and end of each row, ns since the start of the recording."""
    rows = content.table(table).sort("start_ns", "end_ns").select("name", "start_ns", "end_ns").rows()
    return [(name, start - MADE_START, end - MADE_START) for name, start, end in rows]


def task():
    return MadePlane("Task Environment", profile_start_time=MADE_START)


def of(name, text, start, length, **stated):
    """Return an event of a TPU's instruction, whose name is the text of it."""
    return Event(f"%{name} = {text}", start, length, stated, {"program_id": 7})


GATHER = "(f32[4]{0}, f32[8]{0}) all-gather-start(f32[4]{0} %p), channel_id=1, replica_groups={{0,1}}"
GATHERED = "f32[8]{0} all-gather-done((f32[4]{0}, f32[8]{0}) %ag-start)"
FUSION = "f32[8]{0} fusion(f32[8]{0} %p), kind=kLoop, calls=%all-reduce_like"


def tpu(number, *lines, core=None):
    """Return the plane of a TPU; `core` is its global id, its number unless given."""
    details = message((5, number if core is None else core))
    plane = MadePlane(f"/device:TPU:{number}", core_details=details, device_type_string="TPU v5p")
    for name, events in lines:
        plane.line(name, events)
    return plane


def test_an_asynchronous_collective_lasts_from_its_start_to_its_done(tmp_path):
    ops = [
        of("ag-start", GATHER, 100, 5),
        of("fusion.1", FUSION, 105, 45),
        of("ag-done", GATHERED, 150, 10),
    ]
    modules = [Event("jit_f(7)", 90, 100, {"run_id": 1})]
    found = read(write_profile(tmp_path, tpu(0, ("XLA Modules", modules), ("XLA Ops", ops)), task()))
    assert spans(found) == [("ag-start", 100, 160), ("fusion.1", 105, 150)]
    assert found.table("kernels")["collective"].to_list() == ["all_gather", None]
    assert found.table("kernels")["stream"].n_unique() == 2


def test_the_line_of_asynchronous_instructions_takes_the_place_of_their_halves(tmp_path):
    ops = [
        of("ag-start", GATHER, 100, 5),
        of("fusion.1", FUSION, 105, 45),
        of("ag-done", GATHERED, 150, 10),
    ]
    beside = [of("ag-start", GATHER, 101, 57, hlo_op="ag-done")]
    modules = [Event("jit_f(7)", 90, 100, {"run_id": 1})]
    lines = ("XLA Modules", modules), ("XLA Ops", ops), ("Async XLA Ops", beside)
    found = read(write_profile(tmp_path, tpu(0, *lines), task()))
    assert spans(found) == [("ag-start", 101, 158), ("fusion.1", 105, 150)]
    operations = found.table("hlo_operations")["name"].cast(str).to_list()
    assert operations == ["ag-start", "fusion.1", "ag-done"]


def test_halves_of_several_runs_and_loops_belong_together_in_order(tmp_path):
    """In a loop an instruction starts again before the next one is done; runs are apart."""
    ops, modules = [], []
    for run, begin in enumerate((0, 1000)):
        modules.append(Event("jit_f(7)", begin, 500, {"run_id": run}))
        for start, done in ((10, 60), (50, 100), (90, 150)):
            ops += [of("ag-start", GATHER, begin + start, 1), of("ag-done", GATHERED, begin + done - 5, 5)]
    found = read(write_profile(tmp_path, tpu(0, ("XLA Modules", modules), ("XLA Ops", ops)), task()))
    expected = [(begin + s, begin + d) for begin in (0, 1000) for s, d in ((10, 60), (50, 100), (90, 150))]
    assert [span[1:] for span in spans(found)] == expected


def test_halves_within_one_nanosecond_belong_together_though_the_done_lasts_longer(tmp_path):
    """As a TPU writes them whose clock stood still: the records of 170 us begin at one time."""
    ops = [of("ag-done", GATHERED, 10, 170), of("ag-start", GATHER, 10, 1)]
    ops += [of("ag-start", GATHER, 300, 1), of("ag-done", GATHERED, 310, 40)]
    modules = [Event("jit_f(7)", 0, 500, {"run_id": 1})]
    found = read(write_profile(tmp_path, tpu(0, ("XLA Modules", modules), ("XLA Ops", ops)), task()))
    assert spans(found) == [("ag-start", 10, 180), ("ag-start", 300, 350)]


def test_a_half_alone_stays_what_it_is(tmp_path):
    ops = [of("ag-done", GATHERED, 10, 5), of("ag-start", GATHER, 100, 5)]
    modules = [Event("jit_f(7)", 0, 200, {"run_id": 1})]
    found = read(write_profile(tmp_path, tpu(0, ("XLA Modules", modules), ("XLA Ops", ops)), task()))
    assert spans(found) == [("ag-done", 10, 15), ("ag-start", 100, 105)]


def test_overlap_of_an_asynchronous_collective_is_what_a_timeline_shows(tmp_path):
    """Of 60 ns, compute runs beside 45."""
    planes = []
    for device in (0, 1):
        ops, modules = [], []
        for step in range(3):
            begin = 1000 * step
            modules.append(Event("jit_f(7)", begin, 900, {"run_id": step}))
            ops += [
                of("ag-start", GATHER, begin + 100, 5),
                of("fusion.1", FUSION, begin + 105, 45),
                of("ag-done", GATHERED, begin + 150, 10),
            ]
        planes.append(tpu(device, ("XLA Modules", modules), ("XLA Ops", ops)))
    gather = instruction("ag-start", "all-gather-start", shape(F32, 8), 2, (36, 1), ALL, CHANNEL, GLOBAL)
    content = program("jit_f", [instruction("p", "parameter", shape(F32, 4), 1), gather], [[0], [1]])
    run = ccl.open(write_profile(tmp_path, *planes, programs(jit_f=(7, content)), task()))
    assert run.metric("comm_comp_overlap").value == pytest.approx(100 * 45 / 60)
    assert run.metric("coll_call_num").value == 1
    assert run.metric("iteration_wall_clock_time").value == pytest.approx((1000 + 1000 + 900) / 3 * 1e-9)


def test_loops_and_branches_are_no_work_of_their_own(tmp_path):
    loop = "(s32[], f32[8]{0}) while((s32[], f32[8]{0}) %t), condition=%c, body=%b"
    branch = "f32[8]{0} conditional(pred[] %p, f32[8]{0} %a, f32[8]{0} %b)"
    ops = [
        of("while.1", loop, 0, 100),
        of("fusion.1", FUSION, 0, 30),
        of("cond.2", branch, 40, 50),
        of("fusion.2", FUSION, 45, 10),
        of("call.3", "f32[8]{0} call(f32[8]{0} %a), to_apply=%c", 200, 10),
    ]
    found = read(write_profile(tmp_path, tpu(0, ("XLA Ops", ops)), task()))
    assert [name for name, _, _ in spans(found)] == ["fusion.1", "fusion.2", "call.3"]


def test_a_tpus_own_line_of_steps_marks_them(tmp_path):
    steps = [Event("5", 0, 90), Event("6", 100, 95), Event("7", 200, 90)]
    ops = [of("fusion.1", FUSION, begin + 10, 50) for begin in (0, 100, 200)]
    run = ccl.open(write_profile(tmp_path, tpu(0, ("Steps", steps), ("XLA Ops", ops)), task()))
    table = run.table("steps")
    assert table["step"].to_list() == [5, 6, 7]
    assert (table["end_ns"] - table["start_ns"]).to_list() == [90, 95, 90]
    assert table["work"].to_list() == [1, 1, 1]


def host(*marks):
    """Return the plane of a host that dispatches a run of a CPU's program in each marked step."""
    events = []
    for number, (start, length) in enumerate(marks):
        events.append(Event("train", start, length, {"step_num": number}))
        execute = {"run_id": 50 + number}
        events.append(Event("Client::Execute (jit_f)", start + 1, 2, execute))
    return MadePlane("/host:CPU").line("python", events, 1)


def device_line(*spans):
    """Return the events of a device's thread, one instruction for each run."""
    return [
        Event(
            "dot.1",
            start,
            length,
            {"hlo_op": "dot.1", "program_id": 7, "run_id": 50 + number, "device_ordinal": 0},
        )
        for number, (start, length) in enumerate(spans)
    ]


def test_steps_that_wait_for_the_device_are_as_marked(tmp_path):
    plane = host((0, 90), (100, 95), (200, 90))
    plane.line("worker", device_line((10, 70), (110, 80), (210, 70)), 2)
    run = ccl.open(write_profile(tmp_path, plane, task()))
    table = run.table("steps")
    assert (table["end_ns"] - table["start_ns"]).to_list() == [90, 95, 90]
    assert "steps-on-device" not in {finding.code for finding in run.findings}


def test_steps_that_only_ask_for_work_are_measured_on_the_device(tmp_path):
    """Three steps are asked for within 30 ns; the device takes 100 for each."""
    plane = host((0, 8), (10, 8), (20, 8))
    plane.line("worker", device_line((50, 90), (150, 90), (250, 90)), 2)
    run = ccl.open(write_profile(tmp_path, plane, task()))
    table = run.table("steps")
    starts = (table["start_ns"] - MADE_START).to_list()
    assert list(zip(starts, (table["end_ns"] - MADE_START).to_list(), strict=True)) == [
        (50, 150),
        (150, 250),
        (250, 340),
    ]
    assert table["work"].to_list() == [1, 1, 1]
    assert "steps-on-device" in {finding.code for finding in run.findings}


def steps_of(folder, *planes):
    """Return number, start and end of each step, ns since the start of the recording, and the codes found."""
    run = ccl.open(write_profile(folder, *planes, task()))
    rows = run.table("steps").select("step", "start_ns", "end_ns").rows()
    found = [(step, start - MADE_START, end - MADE_START) for step, start, end in rows]
    return found, {finding.code for finding in run.findings}


def test_steps_of_which_some_run_ahead_are_measured_on_the_device(tmp_path):
    """The program waits in every second of its steps."""
    plane = host((0, 8), (10, 190), (210, 8), (220, 180))
    plane.line("worker", device_line((5, 90), (100, 95), (215, 90), (310, 80)), 2)
    found, codes = steps_of(tmp_path, plane)
    assert found == [(0, 5, 100), (1, 100, 215), (2, 215, 310), (3, 310, 390)]
    assert "steps-on-device" in codes


def test_marked_steps_that_were_not_recorded_to_their_end_are_left_out(tmp_path):
    """Of the third step the device ran one of two instructions, of the fourth none."""
    plane = host((0, 8), (10, 8), (20, 8), (30, 8))
    plane.line("worker", device_line((5, 90), (105, 90), (205, 90)), 2)
    plane.line("other", device_line((96, 4), (196, 4)), 3)
    found, codes = steps_of(tmp_path, plane)
    assert found == [(0, 5, 105), (1, 105, 205)]
    assert "steps-on-device" in codes


def test_a_step_without_the_evaluation_of_the_one_before_is_whole(tmp_path):
    """The program evaluates at the beginning of its first step, and never waits."""
    stated = {"run_id": 99, "hlo_op": "dot.1", "program_id": 8, "device_ordinal": 0}
    plane = host((10, 18), (30, 8))
    plane.line("python", [Event("Client::Execute (jit_g)", 10, 1, {"run_id": 99})], 1)
    ran = device_line((100, 90), (205, 90))
    plane.line("worker", [Event("dot.1", 40, 50, stated), *ran], 2)
    assert steps_of(tmp_path, plane)[0] == [(0, 40, 205), (1, 205, 295)]


def test_a_last_step_that_only_begins_as_the_one_before_is_left_out(tmp_path):
    """Each step runs two programs; the recording ended before the second one of the second step."""
    stated = {"run_id": 99, "hlo_op": "dot.1", "program_id": 8, "device_ordinal": 0}
    plane = host((10, 18), (30, 8))
    plane.line("python", [Event("Client::Execute (jit_g)", 15, 1, {"run_id": 99})], 1)
    ran = device_line((100, 90), (305, 90))
    plane.line("worker", [*ran, Event("dot.1", 200, 50, stated)], 2)
    assert steps_of(tmp_path, plane)[0] == [(0, 100, 305)]


def test_a_last_step_that_repeats_another_is_whole(tmp_path):
    """Only the second of three steps evaluates, at its end."""
    stated = {"run_id": 99, "hlo_op": "dot.1", "program_id": 8, "device_ordinal": 0}
    plane = host((10, 8), (30, 18), (50, 8))
    plane.line("python", [Event("Client::Execute (jit_g)", 35, 1, {"run_id": 99})], 1)
    ran = device_line((100, 90), (200, 90), (405, 90))
    plane.line("worker", [*ran, Event("dot.1", 300, 50, stated)], 2)
    assert steps_of(tmp_path, plane)[0] == [(0, 100, 200), (1, 200, 405), (2, 405, 495)]


def without_a_call(*marks):
    """Return the plane of a host of which one record is lost: the call in the second marked step."""
    plane = MadePlane("/host:CPU")
    events = []
    for number, (start, length) in enumerate(marks):
        events.append(Event("train", start, length, {"step_num": number}))
        if number != 1:
            events.append(Event("Client::Execute (jit_f)", start + 1, 2, {"run_id": 50 + number}))
    return plane.line("python", events, 1)


def known_program():
    """Return the plane of the program that `device_line` runs."""
    parts = [instruction("dot.1", "negate", shape(F32, 8), 1)]
    return programs(jit_f=(7, program("jit_f", parts, [[0]])))


def test_a_lost_call_of_a_program_that_waits_costs_no_marked_step(tmp_path):
    """Of the last step the recording lost the work, so that alone would look like running ahead."""
    plane = without_a_call((0, 90), (100, 95), (200, 90), (300, 90))
    plane.line("worker", device_line((10, 70), (110, 80), (210, 70)), 2)
    found, codes = steps_of(tmp_path, plane, known_program())
    assert found == [(0, 0, 90), (1, 100, 195), (2, 200, 290), (3, 300, 390)]
    assert not {"steps-on-device", "steps-by-program"} & codes


def test_a_lost_call_of_a_program_that_runs_ahead_leaves_the_runs_of_the_program(tmp_path):
    plane = without_a_call((0, 8), (10, 8), (20, 8), (30, 8))
    plane.line("worker", device_line((50, 90), (150, 90), (250, 90), (350, 90)), 2)
    found, codes = steps_of(tmp_path, plane, known_program())
    assert found == [(0, 50, 150), (1, 150, 250), (2, 250, 350), (3, 350, 440)]
    assert "steps-by-program" in codes


def test_the_only_step_with_work_is_left_out_where_the_recording_ended_before_the_next(tmp_path):
    """Nothing shows that the device ran all of it."""
    plane = host((0, 8), (10, 8))
    plane.line("worker", device_line((50, 90)), 2)
    found, codes = steps_of(tmp_path, plane, known_program())
    assert found == [(0, 1, 140)]
    assert "steps-not-found" in codes


def test_work_asked_for_before_the_recording_is_of_no_marked_step(tmp_path):
    """The runtime's thread runs it during the first step, long after the program asked for it."""
    earlier = {"run_id": 40, "device_ordinal": 0}
    waits = Event("ThunkExecutor::Execute (wait for completion)", 104, 3, earlier)
    ran = Event("dot.1", 10, 100, {"hlo_op": "dot.1", "program_id": 7, **earlier})
    plane = host((100, 8), (110, 8)).line("worker", [ran, waits, *device_line((120, 90), (220, 90))], 2)
    assert steps_of(tmp_path, plane)[0] == [(0, 120, 220), (1, 220, 310)]


def test_ranges_on_a_thread_that_asks_for_no_work_are_no_steps(tmp_path):
    """A thread loads batches under the same name, and takes longer."""
    plane = host((0, 90), (100, 95), (200, 90))
    plane.line("loader", [Event("train", at, 140, {"step_num": at}) for at in (0, 150)], 3)
    plane.line("worker", device_line((10, 70), (110, 80), (210, 70)), 2)
    assert steps_of(tmp_path, plane)[0] == [(0, 0, 90), (1, 100, 195), (2, 200, 290)]


def test_a_step_on_the_device_ends_before_work_that_is_of_no_step(tmp_path):
    """The program evaluates between its second and third step; it never waits."""
    stated = {"run_id": 99, "hlo_op": "dot.1", "program_id": 8, "device_ordinal": 0}
    plane = host((0, 8), (10, 8), (30, 8), (40, 8))
    plane.line("python", [Event("Client::Execute (jit_g)", 22, 2, {"run_id": 99})], 1)
    ran = device_line((50, 90), (150, 90), (310, 90), (410, 90))
    plane.line("worker", [*ran, Event("dot.1", 250, 50, stated)], 2)
    assert steps_of(tmp_path, plane)[0] == [(0, 50, 150), (1, 150, 240), (2, 310, 410), (3, 410, 500)]


def test_marks_that_hold_none_of_the_work_are_no_steps(tmp_path):
    """A process of one CPU device does not show when it asked for a run; here it runs ahead."""
    marks = [Event("train", 10 * number, 8, {"step_num": number}) for number in range(3)]
    plane = MadePlane("/host:CPU").line("python", marks, 1)
    plane.line("worker", device_line((50, 90), (150, 90), (250, 90)), 2)
    found, codes = steps_of(tmp_path, plane, known_program())
    assert found == [(0, 50, 150), (1, 150, 250), (2, 250, 340)]
    assert "steps-by-program" in codes


def test_unmarked_steps_of_several_programs_begin_with_the_first_of_them(tmp_path):
    """The second program takes most time; the recording ends with the third."""
    runs = [(name, 100 * step + at, ns) for step in range(3) for name, at, ns in _RUNS]
    modules = [Event(*run) for run in runs]
    ops = [of("fusion.1", FUSION, start, length) for _, start, length in runs]
    found, codes = steps_of(tmp_path, tpu(0, ("XLA Modules", modules), ("XLA Ops", ops)))
    assert found == [(0, 0, 100), (1, 100, 200), (2, 200, 298)]
    assert "steps-by-program" in codes


def program_steps(folder, **choice):
    """Return number, start and end of each step of a profile, ns, and the codes of the findings."""
    run = ccl.open(folder, **choice)
    found = run.table("steps").select("step", "start_ns", "end_ns", "device_start_ns", "device_end_ns")
    assert (found["device_start_ns"] == found["start_ns"]).all()
    assert (found["device_end_ns"] == found["end_ns"]).all()
    origin = MADE_START
    rows = [(step, start - origin, end - origin) for step, start, end, *_ in found.rows()]
    return rows, {finding.code for finding in run.findings}


def two_programs(tmp_path):
    """Return a profile of four runs of a program, two of one that reduces, and one of a third."""
    runs = [("jit_a(1)", 100 * number, 60) for number in range(4)]
    runs += [("jit_psum(2)", 165, 20), ("jit_psum(2)", 370, 15), ("jit_once(3)", 390, 5)]
    runs.sort(key=lambda run: run[1])
    modules = [Event(*run) for run in runs]
    reduces = "%all-reduce.1 = f32[8]{0} all-reduce(f32[8]{0} %p), channel_id=1, replica_groups={{0,1}}"
    ops = [
        of("all-reduce.1", reduces, start, length)
        if name.startswith("jit_psum")
        else of("fusion.1", FUSION, start, length)
        for name, start, length in runs
    ]
    reduce_ = instruction("all-reduce.1", "all-reduce", shape(F32, 8), 2, (36, 1), ALL, CHANNEL, GLOBAL)
    content = program("jit_psum", [instruction("p", "parameter", shape(F32, 8), 1), reduce_], [[0], [1]])
    plane = tpu(0, ("XLA Modules", modules), ("XLA Ops", ops))
    return write_profile(tmp_path, plane, programs(jit_psum=(7, content)), task())


def test_runs_of_a_chosen_program_are_the_steps(tmp_path):
    """A step lasts until the next run begins, the last one until its run ends."""
    folder = two_programs(tmp_path)
    main = [(0, 0, 100), (1, 100, 200), (2, 200, 300), (3, 300, 360)]
    for _ in range(2):  # the second time from the cache, which tells the choices apart
        found, codes = program_steps(folder)
        assert found == main
        assert "steps-by-program" in codes
        found, codes = program_steps(folder, program="jit_psum")
        assert found == [(0, 165, 370), (1, 370, 385)]
        assert not DETECTED & codes
        assert program_steps(folder, program="jit_once")[0] == [(0, 390, 395)]
        assert program_steps(folder, program="jit_a", steps="1-2")[0] == main[1:3]
    assert {*ccl.open(folder, program="jit_psum").table("steps")["source"]} == {"chosen program"}


def test_a_program_that_does_not_run_is_named_with_those_that_do(tmp_path):
    folder = two_programs(tmp_path)
    with pytest.raises(UsageError, match="no trace has runs of a program 'jit_sum'") as close:
        program_steps(folder, program="jit_sum")
    assert close.value.fix == "did you mean jit_psum or jit_a or jit_once?"
    with pytest.raises(UsageError) as far:
        program_steps(folder, program="nothing like it")
    assert far.value.fix == "there are programs jit_a, jit_psum, jit_once"
    with pytest.raises(UsageError, match="steps are either ranges or runs of a program"):
        ccl.open(folder, program="jit_a", marker="pass")


def test_communication_in_another_program_is_reached_by_choosing_it(tmp_path):
    folder = two_programs(tmp_path)
    (tmp_path / "run_metadata.json").write_text('{"world_size": 2}')
    names = ("comm_comp_overlap", "total_communication_time", "coll_call_num")
    by_default = {each.metric: each for each in ccl.open(folder).results(names)}
    # the second step of the main program holds one of the two calls: 20 ns in four steps
    assert by_default["total_communication_time"].value == pytest.approx(20e-9 / 4)
    chosen = {each.metric: each for each in ccl.open(folder, program="jit_psum").results(names)}
    assert chosen["coll_call_num"].value == 1
    assert chosen["total_communication_time"].value == pytest.approx((20e-9 + 15e-9) / 2)
    without = {each.metric: each for each in ccl.open(folder, program="jit_once").results(names)}
    for each in without.values():
        assert each.value is None
        assert "--program" in each.fix
        assert "--marker" in each.fix


def test_runs_of_programs_on_a_gpu_begin_with_their_first_instruction(tmp_path):
    entry = [
        instruction("fusion.1", "fusion", shape(F32, 8), 1),
        instruction("fusion.2", "fusion", shape(F32, 8), 2),
    ]
    stated = {name: {"hlo_module": name, "program_id": of} for name, of in (("jit_a", 7), ("jit_b", 8))}
    events = [
        Event(f"kernel_{op}", start, length, {**stated[name], "hlo_op": op, "correlation_id": start + 1})
        for name, op, start, length in (
            *(("jit_a", "fusion.1", 100 * n, 30) for n in range(4)),
            *(("jit_a", "fusion.2", 100 * n + 40, 10) for n in range(4)),
            *(("jit_b", "fusion.1", 55 + 200 * n, 20) for n in range(2)),
            *(("jit_b", "fusion.2", 80 + 200 * n, 5) for n in range(2)),
        )
    ]  # fmt: skip
    events.sort(key=lambda event: event.start_ns)
    contents = {name: program(name, entry, [[0]]) for name in stated}
    folder = write_profile(
        tmp_path,
        gpu(0, *events),
        programs(jit_a=(7, contents["jit_a"]), jit_b=(8, contents["jit_b"])),
        task(),
    )
    assert program_steps(folder)[0] == [(0, 0, 100), (1, 100, 200), (2, 200, 300), (3, 300, 350)]
    assert program_steps(folder, program="jit_b")[0] == [(0, 55, 255), (1, 255, 285)]


def test_a_marker_names_ranges_of_the_host(tmp_path):
    plane = host((0, 90), (100, 95), (200, 90))
    plane.line("worker", device_line((10, 70), (110, 80), (210, 70)), 2)
    plane.line("more", [Event("pass 4", 0, 150), Event("pass 5", 150, 150)], 3)
    run = ccl.open(write_profile(tmp_path, plane, task()), marker=r"^pass (\d+)$")
    assert run.table("steps").select("step", "work").rows() == [(4, 2), (5, 1)]
    assert {*run.table("steps")["source"]} == {"chosen range"}


_RUNS = ("jit_a(1)", 0, 10), ("jit_b(2)", 15, 60), ("jit_c(3)", 78, 20)
"""Programs of a step: name, start and length."""


def test_a_flow_leads_from_the_thread_that_enqueues_to_the_one_that_asks(tmp_path):
    """A TPU's program is enqueued by another thread long after the step that asked for it ended."""
    python = [
        Event("train", 0, 20, {"step_num": 0}),
        Event("Execute", 5, 2, {"_pt": 5, "_p": 11}),
        Event("train", 30, 20, {"step_num": 1}),
        Event("Execute", 35, 2, {"_pt": 5, "_p": 12}),
    ]
    worker = [
        Event("Run", 100, 50, {"_ct": 5, "_c": 11}),
        Event("DoEnqueueProgram", 120, 2, {"_pt": 12, "_p": 901}),
        Event("Run", 200, 50, {"_ct": 5, "_c": 12}),
        Event("DoEnqueueProgram", 220, 2, {"_pt": 12, "_p": 902}),
    ]
    runs = [
        Event("jit_f(7)", 130, 60, {"run_id": 1, "_ct": 12, "_c": 901}),
        Event("jit_f(7)", 230, 60, {"run_id": 2, "_ct": 12, "_c": 902}),
    ]
    ops = [of("fusion.1", FUSION, 135, 50), of("fusion.1", FUSION, 235, 50)]
    threads = MadePlane("/host:CPU").line("python", python, 1).line("worker", worker, 2)
    device = tpu(0, ("XLA Modules", runs), ("XLA Ops", ops))
    found = read(write_profile(tmp_path, device, threads, task()))
    assert (found.table("launches")["start_ns"] - MADE_START).to_list() == [5, 35]
    marks = [row for row in spans(found, "annotations") if "step_num" in row[0]]
    assert marks == [("train#step_num=0#", 135, 235), ("train#step_num=1#", 235, 285)]


def gpu(number, *events, **stated):
    plane = MadePlane(f"/device:GPU:{number}", core_count=100, **stated)
    return plane.line("Stream #7(Kernel)", events, 7)


def test_a_collective_of_gpus_is_known_by_its_instruction(tmp_path):
    """The kernel's name does not say what a generic kernel of RCCL carries out, nor its groups."""
    reduce_ = instruction("ar.1", "all-reduce", shape(16, 1024), 2, (36, 1), ALL, CHANNEL, GLOBAL)
    content = program("jit_f", [instruction("p", "parameter", shape(16, 1024), 1), reduce_], [[0], [1]])
    stated = {"hlo_op": "ar.1", "hlo_module": "jit_f", "program_id": 7, "correlation_id": 3}
    details = "regs:32 static_shared:16 dynamic_shared:0 grid:200,1,1 block:512,1,1 occ_pct:50"
    kernel = Event("ncclDevKernel_Generic_1", 10, 50, {**stated, "kernel_details": details})
    copy = "kind_src:device kind_dst:host size:64 dest:0 async:1"
    moved = Event("MemcpyD2H", 70, 5, {"correlation_id": 4, "memcpy_details": copy})
    planes = [gpu(0, kernel, moved), gpu(1, kernel, moved)]
    found = read(write_profile(tmp_path, *planes, programs(jit_f=(7, content)), task()), "GPU:1")
    (call,) = found.table("collectives").to_dicts()
    assert (call["name"], call["dtype"], call["in_elements"], call["out_elements"]) == (
        *("all_reduce", "bf16"),
        *(1024, 1024),
    )
    assert call["group_ranks"] == [0, 1]
    assert found.rank == 1
    (row,) = found.table("kernels").to_dicts()
    assert (row["grid_blocks"], row["block_threads"], row["blocks_per_sm"]) == (200, 512, 2.0)
    assert (row["registers"], row["shared_memory_bytes"], row["occupancy_pct"]) == (32, 16, 50.0)
    (copied,) = found.table("memcpy").to_dicts()
    assert (copied["kind"], copied["bytes"]) == ("DtoH", 64)


def copied(start, number):
    copy = "kind_src:device kind_dst:host size:64 dest:0 async:1"
    return Event("MemcpyD2H", start, 5, {"correlation_id": number, "memcpy_details": copy})


def test_a_device_that_only_copies_holds_work(tmp_path):
    """One of three GPUs computes, one copies, and one does nothing."""
    stated = {"hlo_op": "dot.1", "hlo_module": "jit_f", "program_id": 7}
    kernels = [Event("gemm", at, 50, stated | {"correlation_id": at + 3}) for at in (10, 110, 210)]
    folder = write_profile(tmp_path, gpu(0, *kernels, copied(70, 4)), gpu(1, copied(20, 5)), gpu(2), task())
    codes = {gpus: {f.code for f in read(folder, gpus).findings} for gpus in ("GPU:0", "GPU:1", "GPU:2")}
    assert ["no-events" in codes[gpus] for gpus in codes] == [False, False, True]
    assert read(folder, "GPU:1").table("memcpy").height == 1
    lines = invoke(["ccl-bench", "inspect", str(folder)]).stdout.splitlines()
    assert " on 2 devices of unknown name: " in lines[1]
    assert any(line.split()[:6] == ["devices", "1", "device", "of", "unknown", "name,"] for line in lines)


def test_a_permute_sends_along_its_pairs(tmp_path):
    """In a pipeline of three the first only sends and the last only receives."""
    pairs = [(52, message((1, source), (2, source + 1))) for source in (0, 1)]
    permute = instruction("cp", "collective-permute", shape(F32, 10), 2, (36, 1), CHANNEL, *pairs)
    content = program("jit_f", [instruction("p", "parameter", shape(F32, 10), 1), permute], [[0], [1], [2]])
    stated = {"hlo_op": "cp", "program_id": 7, "correlation_id": 3}
    planes = [gpu(device, Event("ncclDevKernel_SendRecv", 10, 50, stated)) for device in range(3)]
    folder = write_profile(tmp_path, *planes, programs(jit_f=(7, content)), task())
    rows = [read(folder, f"GPU:{device}").table("collectives").to_dicts()[0] for device in range(3)]
    assert [(row["in_elements"], row["out_elements"]) for row in rows] == [(10, 0), (10, 10), (0, 10)]
    assert {row["name"] for row in rows} == {"send_recv"}
    assert [row["group_ranks"] for row in rows] == [[0, 1, 2]] * 3


def test_two_hosts_have_their_own_devices(tmp_path):
    ops = ("XLA Ops", [of("fusion.1", FUSION, 10, 50)])
    folder = tmp_path / "plugins" / "profile" / "2026_11_23_10_00_00"
    write_profile(folder, tpu(0, ops, core=0), tpu(1, ops, core=1), task(), name="a.xplane.pb")
    write_profile(folder, tpu(0, ops, core=2), tpu(1, ops, core=3), task(), name="b.xplane.pb")
    inspection = ccl.open(tmp_path).inspect()
    assert sorted(trace.rank for trace in inspection.traces) == [0, 1, 2, 3]


def test_a_damaged_line_leaves_the_others(tmp_path):
    ops = ("XLA Ops", [of("fusion.1", FUSION, 10, 50)])
    plane = tpu(0, ops)
    plane._lines.append(b"\x22\x7f")  # an event that is longer than its line
    found = read(write_profile(tmp_path, plane, task()))
    assert found.table("kernels").height == 1
    damage = {finding.code: finding.message for finding in found.findings}
    assert "line 1 of /device:TPU:0" in damage["table-damaged"]


def test_what_the_profiler_complains_of_is_a_finding(tmp_path):
    folder = write_profile(tmp_path, tpu(0, ("XLA Ops", [of("fusion.1", FUSION, 10, 50)])))
    path = folder / "host.xplane.pb"
    path.write_bytes(path.read_bytes() + put(2, "dropped 12 events"))
    found = {finding.code: finding.message for finding in read(folder).findings}
    assert "dropped 12 events" in found["events-dropped"]
    assert "clock-unanchored" in found


def test_a_profile_without_work_is_refused_by_name(tmp_path):
    folder = write_profile(tmp_path, MadePlane("/host:CPU").line("python", [Event("train", 0, 9)]), task())
    with pytest.raises(InputError, match="no work of any device"):
        list_devices(folder / "host.xplane.pb")


def test_a_profile_that_is_cut_off_names_the_place(tmp_path):
    planes = tpu(0, ("XLA Ops", [of("fusion.1", FUSION, 10, 50)])), tpu(1, ("XLA Ops", []))
    folder = write_profile(tmp_path, *planes)
    path = folder / "host.xplane.pb"
    path.write_bytes(path.read_bytes()[:-10])
    whole = len(put(1, planes[0].encoded()))
    found = {finding.code: finding.message for finding in read(folder).findings}
    assert f"at byte {whole:,}" in found["file-truncated"]
    path.write_bytes(path.read_bytes()[: whole // 2])
    with pytest.raises(InputError, match="truncated or damaged at byte 0, within its first plane"):
        list_devices(path)


def alone(device, *times):
    """Return the plane of a process with one CPU device: who asked, and what ran, at these times."""
    asked = [Event("Client::ExecuteHelperOnSingleDevice", start, 5) for start, _ in times]
    ran = [
        Event(
            "dot.1",
            begin,
            50,
            {"hlo_op": "dot.1", "program_id": 7, "run_id": -9 - k, "device_ordinal": device},
        )
        for k, (_, begin) in enumerate(times)
    ]
    marks = [Event("train", start - 1, 90, {"step_num": k}) for k, (start, _) in enumerate(times)]
    return MadePlane("/host:CPU").line("python", [*marks, *asked], 1).line("worker", ran, 2)


def test_the_calls_of_a_process_with_one_device_start_its_runs_in_order(tmp_path):
    folder = write_profile(tmp_path, alone(0, (10, 20), (110, 120)), task())
    found = read(folder, "")
    assert (found.table("launches")["start_ns"] - MADE_START).to_list() == [10, 110]
    assert found.table("kernels").sort("start_ns")["correlation"].to_list() == [1, 2]


def test_calls_that_are_no_more_than_near_to_runs_start_none(tmp_path):
    """The second run begins before what seems to be its call."""
    folder = write_profile(tmp_path, alone(0, (10, 20), (110, 100)), task())
    assert read(folder, "").table("launches").is_empty()


def test_a_process_with_one_cpu_device_has_the_rank_of_its_number(tmp_path):
    """JAX numbers the CPU devices of process p from 2048 p."""
    content = program("jit_f", [instruction("dot.1", "add", shape(F32, 4), 1)], [[0], [2048], [4096]])
    folder = write_profile(tmp_path, alone(2048, (10, 20)), programs(jit_f=(7, content)), task())
    job = list_devices(folder / "host.xplane.pb")
    assert [(device.global_id, device.rank) for device in job.devices] == [(2048, 1)]
    assert job.world_size == 3
