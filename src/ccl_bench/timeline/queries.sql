-- Queries for Perfetto's page "Query (SQL)" and its trace processor, on a timeline of ccl-bench.
-- A slice that stands for merged ones has their total time in sum_ns. Times are in ms.

-- Exposed communication of each rank, in parts
select process.name as rank, substr(slice.category, 9) as part,
       sum(coalesce(extract_arg(slice.arg_set_id, 'args.sum_ns'), slice.dur)) / 1e6 as ms
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
where slice.category glob 'exposed *'
group by process.upid, slice.category
order by ms desc;

-- Waits of each rank in collectives, and the waits of others that it caused
select process.name as rank,
       sum(iif(slice.category = 'wait', coalesce(extract_arg(slice.arg_set_id, 'args.sum_ns'), slice.dur), 0)) / 1e6 as waits_ms,
       sum(iif(slice.category = 'late', coalesce(extract_arg(slice.arg_set_id, 'args.sum_ns'), slice.dur), 0)) / 1e6 as caused_ms
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
where slice.category in ('wait', 'late') and process.name != 'all ranks'
group by process.upid
order by caused_ms desc;

-- Critical path by rank and kind
select process.name as rank, slice.name as kind, count(*) as stretches,
       sum(coalesce(extract_arg(slice.arg_set_id, 'args.sum_ns'), slice.dur)) / 1e6 as ms
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
where slice.category = 'critical path'
group by process.upid, slice.name
order by ms desc;

-- The 20 slowest calls
select process.name as rank, extract_arg(slice.arg_set_id, 'args.step') as step,
       extract_arg(slice.arg_set_id, 'args.collective') as collective,
       extract_arg(slice.arg_set_id, 'args.bytes') as bytes, slice.dur / 1e6 as ms, slice.id
from slice join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)
where slice.category = 'communication' and extract_arg(slice.arg_set_id, 'args.slices') is null
order by slice.dur desc
limit 20;

-- Diagnoses, with the time that each saves in a mean step
select extract_arg(arg_set_id, 'args.diagnosis') as diagnosis, name, count(*) as steps,
       max(extract_arg(arg_set_id, 'args.gain_ns_per_step')) / 1e6 as gain_ms, extract_arg(arg_set_id, 'args.fix') as fix
from slice
where category = 'diagnosis'
group by diagnosis, name
order by gain_ms desc;
