"""Faults in the geometry checker."""

from tests.mutations.fault import Mutation

C, T = "positionlib/check", "tests/check"

MUTATIONS = [
    Mutation("check: padded prompt starts anywhere", f"{C}/numbering.py", "return fed if inside else first + self.cached", "return fed", f"{T}/test_arrays.py"),
    Mutation("check: cached numbering unread", f"{C}/numbering.py", "return int(self.known[-1]) + 1", "return int(self.fed[0])", f"{T}/test_arrays.py"),
    Mutation("check: padding behind the cache forgotten", f"{C}/numbering.py", "self.call.past - self.pads_behind if", "self.call.past if", f"{T}/test_arrays.py"),
    Mutation("check: a window inside a document is blamed", f"{C}/numbering.py", "self.sequence.packed and self.sequence.number == 0 and fed > first", "False", f"{T}/test_arrays.py"),
    Mutation("check: table one row longer", f"{C}/numbering.py", "high >= call.table_rows", "high > call.table_rows", f"{T}/test_arrays.py"),
    Mutation("check: OPT's row offset lost", f"{C}/families.py", "absolute=True, row_offset=2)", "absolute=True)", f"{T}/test_arrays.py"),
    Mutation("check: bidirectional families read the past", f"{C}/masks.py", "earlier = column <= query if family.causal else column < width", "earlier = column <= query", f"{T}/test_arrays.py"),
    Mutation("check: a mask of the new columns passes", f"{C}/masks.py", 'call.past and call.mask_covers == "new"', "False", f"{T}/test_arrays.py"),
    Mutation("check: one shared id of padding and BOS is blamed", f"{C}/masks.py", "left == 1 and call.pad_token_id == call.bos_token_id", "False", f"{T}/test_arrays.py"),
    Mutation("check: cached columns of an earlier call forgotten", f"{C}/arrays.py", "call = replace(call, active=torch.cat((before.active, call.new), 1))", "pass", f"{T}/test_arrays.py"),
    Mutation("check: contract faults are bad input", f"{C}/manifest.py", 'return Report((), (Finding("contract"', 'raise error\n        return Report((), (Finding("contract"', f"{T}/test_manifest.py"),
    Mutation("check: declared coordinates unread", f"{C}/manifest.py", 'replace(kind, coordinate="position_ids")', "kind", f"{T}/test_manifest.py"),
    Mutation("check: header's size believed", f"{C}/reading.py", "counted and size == here", "True", f"{T}/test_files.py"),
    Mutation("check: objects taken", f"{C}/reading.py", 'dtype.kind in "biu"', "True", f"{T}/test_files.py"),
    Mutation("check: findings end with 0", f"{C}/findings.py", "return 1 if self.findings else 0", "return 0", f"{T}/test_files.py"),
    Mutation("probe: first layer unseen", f"{C}/probe.py", "for number, (layer, whole) in enumerate(zip(got, self.alone[row], strict=True)):", "for number, (layer, whole) in list(enumerate(zip(got, self.alone[row], strict=True)))[-1:]:", f"{T}/test_probe.py"),
    Mutation("probe: NaN is no difference", f"{C}/probe.py", ".nan_to_num(math.inf, math.inf)", ".nan_to_num(0.0)", f"{T}/test_probe.py"),
    Mutation("probe: decode in one piece", f"{C}/probe.py", "range(1, len(self.prompts[0]) + 1)", "[len(self.prompts[0])]", f"{T}/test_probe.py"),
    Mutation("probe: relative families must notice a shift", f"{C}/probe.py", "if not self.kind.absolute:", "if self.kind.absolute:", f"{T}/test_probe.py"),
    Mutation("probe: order measured by the whole state", f"{C}/probe.py", "self.tolerance * min(content, size)", "self.tolerance * size", f"{T}/test_probe.py"),
    Mutation("probe: order below the rounding counts", f"{C}/probe.py", "min(self.tolerance, 16 * self.unit) * size", "0.0", f"{T}/test_probe.py"),
    Mutation("probe: only the first prompt compared", f"{C}/probe.py", "for row, where in enumerate(rows))", "for row, where in list(enumerate(rows))[:1])", f"{T}/test_probe.py"),
    Mutation("probing: an exit taken for the report", "positionlib/check/probing.py", '    except BaseException as error:\n        raise PositionContractError("probe"', '    except Exception as error:\n        raise PositionContractError("probe"', "tests/check/test_probing.py"),
    Mutation("probing: the model prints into the report", "positionlib/check/probing.py", 'contextlib.redirect_stdout(sys.stderr)', 'contextlib.nullcontext()', "tests/check/test_probing.py"),
    Mutation("probing: settings dropped", "positionlib/check/probing.py", '| ({} if path is None else read_settings(path))', '| ({} if path is None else read_settings(path) and {})', "tests/check/test_probing.py"),
    Mutation("probing: any callable a step", "positionlib/check/probing.py", 'inspect.signature(step).bind(**dict.fromkeys(KEYWORDS))', 'pass', "tests/check/test_probing.py"),
    Mutation("probing: any setting taken", "positionlib/check/reading.py", 'set(settings) <= set(SETTINGS)', 'True', "tests/check/test_probing.py"),
    Mutation("probing: the user's folder not looked into", "positionlib/check/probing.py", '    sys.path.insert(0, str(Path.cwd()))\n', '', "tests/check/test_probing.py"),
    Mutation("probing: a child prints into the report", f"{C}/probing.py", "        os.dup2(2, 1)\n", "", f"{T}/test_probe_hostile.py"),
    Mutation("probing: the end prints behind the report", f"{C}/__main__.py", "    os.dup2(2, 1)\n", "", f"{T}/test_probe_hostile.py"),
    Mutation("probe: a rounding is a difference", f"{C}/probe.py", "max(self.tolerance, 4 * self.unit) * scale", "self.tolerance * scale", f"{T}/test_probe_hostile.py"),
    Mutation("probe: a prompt lent to the model", f"{C}/probe.py", "input_ids=ids.clone()", "input_ids=ids", f"{T}/test_probe_hostile.py"),
    Mutation("probe: states left in the model's buffer", f"{C}/probe.py", "copy=True", "copy=False", f"{T}/test_probe_hostile.py"),
    Mutation("probe: an exit ends the probe", f"{C}/probe.py", "except BaseException as error:", "except Exception as error:", f"{T}/test_probe_hostile.py"),
    Mutation("check: a tag read", "positionlib/manifest_io.py", "require(tag is None", "require(True", f"{T}/test_hostile_files.py"),
    Mutation("check: any compression", f"{C}/reading.py", "require(plain, name", "require(True, name", f"{T}/test_hostile_files.py"),
]
