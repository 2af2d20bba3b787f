"""Proves what the functions named prove_* of a library assert: prove.py LIBRARY [NAME...]

angr follows every path through the machine code of a proof with values that stand for all values, and Z3 decides
which way a branch can go; where that takes it long, Bitwuzla does. A proof holds if no path fails, all end, and one ends with everything asserted. What cannot be
decided (an address that may be anywhere, a solver that gives up) counts as not proved.

Status: 0 all proved, 1 something is refuted, 2 something is neither, 3 no proof has such a name.
"""

import argparse
import logging
import re
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context

logging.disable(logging.CRITICAL)

import angr  # noqa: E402
import bitwuzla  # noqa: E402
import claripy  # noqa: E402
import z3  # noqa: E402
from angr.concretization_strategies import SimConcretizationStrategyRange  # noqa: E402

PREFIX, ABOUT = "prove_", "about_"
NONE_CHOSEN = 3
# Where a proof returns to, where the memory of `symbolic::memory` begins, and where is read in its place.
END, MEMORY, SCRATCH = 0x5EAD_0000_0000, 0x6000_0000_0000, 0x7000_0000_0000
# One piece of memory after another, each with room for any length of 32 bits and a guard.
SPACING = 1 << 33
# Seconds that a proof may take.
PATIENCE = 1800
# Milliseconds that Z3 has for a question before Bitwuzla is asked, and that this has then.
TURNS = 1_000, 600_000


def satisfiable(self, extra_constraints=(), solver=None, model_callback=None):
    """In place of the method of claripy's Z3 backend: whether values exist with which all constraints hold."""
    solver.set("timeout", TURNS[0])
    answer = solver.check(*extra_constraints)
    if answer == z3.sat and model_callback is not None:
        model_callback(self._generic_model(solver.model()))
    return answer == z3.sat if answer != z3.unknown else second_opinion([*solver.assertions(), *extra_constraints])


def second_opinion(constraints):
    """The same by Bitwuzla, which is better at arithmetic."""
    question = z3.Solver(ctx=constraints[0].ctx)
    question.add(*constraints)
    options = bitwuzla.Options()
    options.set(bitwuzla.Option.TIME_LIMIT_PER, TURNS[1])
    parser = bitwuzla.Parser(bitwuzla.TermManager(), options)
    # Z3's own names of divisions whose divisor it has found not to be zero.
    text = re.sub(r"\b(bvudiv|bvurem|bvsdiv|bvsrem|bvsmod)_i\b", r"\1", question.to_smt2()).replace("(check-sat)", "")
    parser.parse("(set-logic QF_BV)\n" + text, True, False)
    answer = parser.bitwuzla().check_sat()
    if answer == bitwuzla.Result.UNKNOWN:
        raise claripy.errors.ClaripySolverInterruptError("no solver knows")
    return answer == bitwuzla.Result.SAT


type(claripy.backends.z3)._satisfiable = satisfiable
# One solver that is told all constraints again costs less than a copy of it for each path.
SOLVER = z3.Solver(ctx=claripy.backends.z3._context)


def solver(self, timeout=None, max_memory=None):
    """In place of the method that makes one."""
    SOLVER.reset()
    return SOLVER


type(claripy.backends.z3).solver = solver
claripy.backends.z3.reuse_z3_solver = True


@dataclass
class Result:
    name: str
    about: str
    seconds: float = 0.0
    paths: int = 0
    refuted: list = field(default_factory=list)
    undecided: list = field(default_factory=list)

    @property
    def status(self):
        return 1 if self.refuted else 2 if self.undecided else 0


def text(state, at, length):
    """The bytes that a string of the program has."""
    value = state.memory.load(at, state.solver.eval_one(length))
    return state.solver.eval_one(value, cast_to=bytes).decode()


class Any(angr.SimProcedure):
    """Fills memory with a value that may be any; numbers are kept as such, so that they can be shown."""

    def run(self, to, length, name, name_length):
        length = self.state.solver.eval_one(length)
        name = text(self.state, name, name_length)
        value = claripy.BVS(name, 8 * length)
        order = self.state.arch.memory_endness if length in (1, 2, 4, 8) else "Iend_BE"
        self.state.memory.store(to, value, endness=order)
        self.state.globals["any"] = self.state.globals.get("any", ()) + ((name, value),)


class Memory(angr.SimProcedure):
    """Promises that there are so many bytes."""

    def run(self, length):
        pieces = self.state.globals.get("memory", ())
        base = MEMORY + len(pieces) * SPACING
        self.state.globals["memory"] = pieces + ((base, length),)
        return claripy.BVV(base, 64)


class Stop(angr.SimProcedure):
    """The path is none that the proof is about."""

    NO_RET = True

    def run(self):
        self.exit(0)


class Failed(angr.SimProcedure):
    """Something asserted does not hold on this path."""

    NO_RET = True

    def run(self, file, length, line):
        line = self.state.solver.eval_one(line) & 0xFFFF_FFFF
        self.state.globals["failed"] = f"{text(self.state, file, length)}:{line}"
        self.exit(1)


def before_read(state):
    """Sees that what is read of promised memory lies within it; what it holds is another matter."""
    address, length = state.inspect.mem_read_address, state.solver.eval_one(state.inspect.mem_read_length)
    pieces = state.globals.get("memory", ())
    state.globals["fresh"] = False
    if not pieces or address.concrete and not MEMORY <= address.concrete_value < SCRATCH:
        return
    promised = claripy.And(address.UGE(MEMORY), address.ULT(SCRATCH))
    if not state.solver.satisfiable([promised]):
        return
    def holds(base, size):
        offset = address - base
        return claripy.And(address.UGE(base), offset.ULE(size), (size - offset).UGE(length))

    within = [holds(base, size) for base, size in pieces]
    beside = claripy.Not(claripy.Or(*within))
    if state.solver.satisfiable([beside]):
        state.add_constraints(beside)
        state.globals["failed"] = f"a read of {length} bytes beside the memory, by the code at {state.addr:#x}"
    state.globals["fresh"] = True
    state.inspect.mem_read_address = claripy.BVV(SCRATCH, 64)


def after_read(state):
    """Promised memory holds anything, and other bytes each time."""
    if state.globals.get("fresh"):
        state.globals["fresh"] = False
        length = state.solver.eval_one(state.inspect.mem_read_length)
        value = claripy.BVS("read", 8 * length)
        state.globals["any"] = state.globals.get("any", ()) + ((f"{length} bytes read", value),)
        state.inspect.mem_read_expr = value


def begin(project, name):
    """The state in which a proof is called. Whatever is not written holds anything."""
    options = {
        angr.options.STRICT_PAGE_ACCESS,
        angr.options.SYMBOL_FILL_UNCONSTRAINED_MEMORY,
        angr.options.SYMBOL_FILL_UNCONSTRAINED_REGISTERS,
    }
    at = project.loader.find_symbol(PREFIX + name).rebased_addr
    state = project.factory.call_state(at, ret_addr=END, add_options=options)
    # Addresses of which there are many are not decided, instead of being taken for one of them.
    state.memory.read_strategies = [SimConcretizationStrategyRange(1024)]
    state.memory.write_strategies = [SimConcretizationStrategyRange(1)]
    state.memory.map_region(SCRATCH, 0x1000, 3)
    state.inspect.b("mem_read", when=angr.BP_BEFORE, action=before_read)
    state.inspect.b("mem_read", when=angr.BP_AFTER, action=after_read)
    return state


def counterexample(state):
    """Where it fails, and values with which it does."""
    show = lambda value: hex(state.solver.eval(value)) if value.length <= 64 else state.solver.eval(value, cast_to=bytes).hex(" ", 4)
    values = ", ".join(f"{name} = {show(value)}" for name, value in state.globals.get("any", ()))
    return f"{state.globals['failed']} with {values or 'any values'}"


def prove(project, name):
    """Follows all paths of a proof."""
    about = project.loader.find_symbol(ABOUT + name)
    about = project.loader.memory.load(about.rebased_addr, about.size).rstrip(b"\0").decode().strip()
    result, started = Result(name, about), time.monotonic()
    simulation = project.factory.simulation_manager(begin(project, name), save_unsat=False)
    while simulation.active and not result.refuted:
        if time.monotonic() - started > PATIENCE:
            result.undecided.append(f"not done after {PATIENCE} s")
            break
        # Depth first: fewer states at a time, and a failure is found soon.
        simulation.move("active", "waiting")
        simulation.stashes["active"] = [simulation.stashes["waiting"].pop()]
        simulation.step()
        for state in simulation.active + simulation.stashes["deadended"]:
            if "failed" in state.globals:
                result.refuted.append(counterexample(state))
        ended = [state for state in simulation.active if state.addr == END]
        result.paths += len(ended)
        simulation.stashes["active"] = [state for state in simulation.active if state.addr != END]
        simulation.stashes["deadended"].clear()
        simulation.move("waiting", "active")
    result.undecided += [f"{type(record.error).__name__}: {record.error}" for record in simulation.errored]
    if simulation.stashes.get("unconstrained"):
        result.undecided.append("a jump to anywhere")
    if not result.paths and not result.refuted:
        result.undecided.append("no path ends: what is assumed is never so")
    result.seconds = time.monotonic() - started
    return result


def load(library):
    project = angr.Project(library, auto_load_libs=False)
    for symbol, hook in {"shunt_any": Any, "shunt_memory": Memory, "shunt_stop": Stop, "shunt_failed": Failed}.items():
        project.hook_symbol(symbol, hook())
    return project


def prove_one(library, name):
    return prove(load(library), name)


def report(result):
    verdict = ("proved", "REFUTED", "UNDECIDED")[result.status]
    print(f"{verdict:9} {result.name:40} {result.paths:5} paths {result.seconds:7.1f} s")
    for line in result.about.replace(" Assumes:", "\nAssumes:").splitlines():
        print(f"          {line.strip()}")
    for reason in (result.refuted + result.undecided)[:3]:
        print(f"          {reason}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library")
    parser.add_argument("names", nargs="*", help="proofs whose names contain one of these; all without")
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    symbols = load(options.library).loader.main_object.symbols
    proofs = sorted({symbol.name.removeprefix(PREFIX) for symbol in symbols if symbol.name.startswith(PREFIX)})
    chosen = [name for name in proofs if not options.names or any(part in name for part in options.names)]
    if not chosen:
        sys.exit(NONE_CHOSEN)
    with ProcessPoolExecutor(options.jobs, mp_context=get_context("spawn")) as pool:
        results = []
        for result in pool.map(prove_one, [options.library] * len(chosen), chosen):
            report(result)
            results.append(result)
    proved = sum(result.status == 0 for result in results)
    print(f"{proved} proved, {len(results) - proved} not")
    sys.exit(1 if any(result.refuted for result in results) else 2 if proved < len(results) else 0)


if __name__ == "__main__":
    main()
