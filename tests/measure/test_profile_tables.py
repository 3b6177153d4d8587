"""Exchange hidden behind compute, and the slowest rank, worked by hand."""

from __future__ import annotations

from src.measure.profile_tables import exchange_rows, step_rows
from src.measure.rank_profile import RankProfile, Span

SECOND = 10**9


def span(begin: float, end: float, size: int | None = None) -> Span:
    return Span(round(begin * SECOND), round(end * SECOND), "something", size)


def profile(rank: int, **of: list[Span]) -> RankProfile:
    steps = {3: (0, 10 * SECOND), 4: (12 * SECOND, 20 * SECOND)}
    return RankProfile(rank, "", steps=steps, **of)  # type: ignore[arg-type]


# second   0    2    4    6    8    10   12   14   16   18   20
# steps    3333333333333333333333333     44444444444444444444
# compute  ==========     ======    =======   ====                 0-4, 6-8.5, 9.5-13, 14-16
# reduce        =========================                          2-12
# reduce                       ==                                  7-8, at the same time as that one
# waiting            ==         ==         ==                      4-6, 8.5-9.5, 13-14
ONE = profile(0, compute=[span(0, 4), span(6, 8.5), span(9.5, 13), span(14, 16)], waiting=[
    span(4, 6), span(8.5, 9.5), span(13, 14),
])  # fmt: skip
ONE.exchanges["all_reduce", "all ranks"] = [span(2, 12, 100), span(7, 8, 20)]
ONE.exchanges["send", "to rank 1"] = [span(12.5, 14.5)]
ONE.exchanges["broadcast", "all ranks"] = [span(10.5, 11.5, 8)]


def test_an_exchange_is_hidden_where_the_rank_computes_meanwhile() -> None:
    reduce, send = exchange_rows(ONE)
    # Of 2-12 the steps have 2-10, in which it computes at 2-4, 6-8.5 and 9.5-10.
    assert (reduce["kind"], reduce["count"], reduce["bytes"]) == ("all_reduce", 2, 120)
    assert (reduce["seconds"], reduce["hidden_seconds"]) == (8, 5)
    assert reduce["hidden_fraction"] == 5 / 8
    # 12.5-13 and 14-14.5 of 12.5-14.5; the broadcast is in no step.
    assert (send["seconds"], send["hidden_seconds"], send["bytes"]) == (2, 1, None)


def test_the_slowest_rank_is_the_one_that_waits_least() -> None:
    other = profile(1, waiting=[span(1, 3), span(12, 16)], input=[span(0, 1)])
    rows = {(row["step"], row["rank"]): row for row in step_rows([ONE, other])}
    assert {key for key, row in rows.items() if row["slowest"]} == {(3, 1), (4, 0)}
    assert [rows[3, rank]["own_seconds"] for rank in (0, 1)] == [7, 8]
    first = rows[3, 0]
    assert (first["seconds"], first["compute_seconds"], first["waiting_seconds"]) == (10, 7, 3)
    # 2-10, and the part of it that is hidden.
    assert (first["exchange_seconds"], first["hidden_seconds"]) == (8, 5)
    assert (rows[3, 1]["input_seconds"], rows[4, 1]["own_seconds"]) == (1, 4)


def test_a_rank_that_cannot_tell_its_waits_waits_for_what_is_not_hidden() -> None:
    silent = profile(0, compute=[span(0, 4)])
    silent.exchanges["all_reduce", ""] = [span(3, 6)]
    first = step_rows([silent])[0]
    assert (first["hidden_seconds"], first["waiting_seconds"], first["own_seconds"]) == (1, 2, 8)


def test_a_step_that_one_rank_alone_has_is_its_own() -> None:
    late = profile(1)
    late.steps = {4: (0, SECOND), 5: (SECOND, 2 * SECOND)}
    assert [(row["step"], row["rank"]) for row in step_rows([ONE, late]) if row["slowest"]] == [
        (3, 0),
        (4, 0),
        (5, 1),
    ]
