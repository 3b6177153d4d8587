"""Commands with a mistake in them, and the sentence with which each is to end.

In their words `{out}` is a path of the run's directory in a folder that is empty, `{fix}` the folder of
tests/config/bad_files.py, `{ro}` a file system that can't be written, `{tmp}` the folder of both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

# Words of a short run; `out` comes after them unless a case has its own.
SHORT = "dataset.limit=640 max_minutes=0.05 tracking.backend=none"
MISTAKE, FAILURE = 2, 1


@dataclass(frozen=True)
class Case:
    """A command line after `python -m src.train`, as typed in a shell.

    Attributes:
        words: what is typed.
        says: what stands in the line on standard error, in this order.
        code: the exit status.
        out: whether `out={out}` is added.
        environment: variables.
        keeps: whether the run's directory stays: it holds what explains the failure.
    """

    words: str
    says: tuple[str, ...] = ()
    code: int = MISTAKE
    out: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    keeps: bool = False


def _mistake(words: str, *says: str, out: bool = True, **environment: str) -> Case:
    return Case(words, says, out=out, environment=environment)


def _failure(words: str, *says: str, keeps: bool = False, **environment: str) -> Case:
    return Case(words, says, code=FAILURE, environment=environment, keeps=keeps)


def _fine(words: str = "", out: bool = True) -> Case:
    return Case(words, code=0, out=out, keeps=True)


def _own(name: str, *says: str) -> Case:
    """A choice of the user's own conf/."""
    return _mistake(f"--config-dir {{fix}}/conf {name}", *says)


def _model(name: str, *says: str, words: str = "") -> Case:
    """The user's own model, with a mistake in how it is named."""
    return _mistake(f"model=custom model.path={name} {words}", f"model.path={name}", *says)


def _broken_model(name: str, *says: str, words: str = "") -> Case:
    """The user's own model, with an error in its code."""
    return _failure(f"model=custom model.path={name} {words}", f"model.path={name}", *says)


def _registered(words: str, *says: str) -> Case:
    """A dataset that only the user can bring, and that has a generator."""
    return _own(f"dataset=registered {words}", *says)


def _split(plan: str, *says: str, words: str = "model=mlp") -> Case:
    """Layers that can't be split among workers by a plan."""
    return _mistake(f"strategy=tensor_parallel {words} 'strategy.plan=[{plan}]'", *says)


def _resume(file: str, *says: str, words: str = "") -> Case:
    return _mistake(f"resume={{fix}}/{file} {words}", f"resume={{fix}}/{file}", *says)


NO_CHECKPOINT = "is no checkpoint of a run"
NO_KERAS_CHECKPOINT = "is no checkpoint of a TensorFlow run"
LONG = "x" * 300

CASES: dict[str, Case] = {
    "a01_model": _mistake("model=resnet19", "model=resnet19: no such model", "did you mean resnet18?"),
    "a02_key": _mistake("optimizer.learning_rate=1", "no such key", "did you mean optimizer.lr?"),
    "a03_type": _mistake("batch=12.5", "batch=12.5: must be a whole number"),
    "a04_nan": _mistake("optimizer.lr=nan", "optimizer.lr=nan: must be a number"),
    "a05_inf": _mistake("max_minutes=inf", "max_minutes=inf: must be a number"),
    "a06_neg": _mistake("workers=-1", "workers=-1: must be at least 1"),
    "a07_huge": _fine("model=mlp epochs=99999999999999999999"),
    "a08_hugelr": _mistake("optimizer.lr=1e400", "optimizer.lr=inf: must be a number"),
    "mesh_product": _mistake(
        "strategy=hybrid workers=4 strategy.pipeline=3",
        "data x pipeline x tensor x shard = 1 x 3 x 1 x 1 = 3",
    ),
    "mesh_tensor": _mistake("strategy=hybrid strategy.tensor=2 strategy.shard=2", "choose strategy.shard=1"),
    "mesh_tied": _mistake(
        "strategy=hybrid workers=4 strategy.shard=2 strategy.pipeline=2 strategy.tied=reduce",
        "strategy.tied=reduce: goes without shards",
    ),
    "mesh_tokens": _mistake(
        "strategy=hybrid workers=4 strategy.tensor=2 strategy.pipeline=2 strategy.sequence_parallel=true",
        "strategy.sequence_parallel=true: goes without stages",
    ),
    "mesh_batch": _mistake(
        "strategy=hybrid strategy.shard=2 batch=9", "must divide by data x shard x microbatches = 2 x 1 = 2"
    ),
    "fsdp_groups": _mistake("strategy=fsdp strategy.groups=[1,2]", "must name modules, as [layer1,layer2]"),
    "a09_empty": _mistake("strategy=", "strategy=: no such strategy; there are capacity, ddp"),
    "a10_emptymodel": _mistake("model=''", "model=: no such model; there are bayes_mlp, cnn"),
    "a10_patch": _mistake("model=vit model.patch=5", "model.patch=5: must divide the images' 28 x 28"),
    "a11_unicode": _mistake("stratégie=ddp", "stratégie=ddp"),
    "a12_emoji": _mistake("strategy=💥", "strategy=💥"),
    "a13_outup": _mistake("out=../../../../../../..", "would replace the folder", out=False),
    "a14_outfile": _mistake("out=README.md", "out=README.md: is a file; choose a directory", out=False),
    "a15_outunderfile": _mistake("out=README.md/x", "out=README.md/x: ", "README.md is a file", out=False),
    "a16_outro": _mistake("out=/proc/x", "out=/proc/x: can't be written", out=False),
    "a17_outsys": _mistake("out=/sys/fs/cgroup/foo/bar", "can't be written", out=False),
    "a18_outlink": _mistake("out={fix}/dangling", "is a link to /nonexist/dir", out=False),
    "a19_outempty": _mistake("out=''", "out=: must not be empty", out=False),
    "a20_outlong": _mistake(f"out={{tmp}}/{LONG}", "File name too long", out=False),
    "a21_outnewline": _mistake("'out={tmp}/a\nb'", "can't be read as key=value", out=False),
    "a22_lastcell": _mistake("-m batch=64,128,0", "batch=0: must be at least 1", out=False),
    "a23_lastcell2": _mistake("-m strategy=single,ddp,tf_nothing", "tf_nothing: no such", out=False),
    "a24_env": _mistake("out='${oc.env:HOME}'", "holds files that are not a run's", out=False, HOME="{fix}"),
    "a25_envmissing": _mistake("model='${oc.env:NOPE}'", "model=${oc.env:NOPE}"),
    "a26_interp": _mistake("batch='${nosuch.key}'", "batch=${nosuch.key}", "nosuch.key"),
    "a27_cycle": _mistake("batch='${batch}'", "batch=${batch}", "itself"),
    "a28_eval": _mistake("seed='${eval:1+1}'", "seed=${eval:1+1}", "eval"),
    "a29_plus": _mistake("++batch=64x", "batch=64x: must be a whole number"),
    "a30_plusnew": _mistake("++foo.bar=1", "foo.bar", "no such key"),
    "a31_tilde": _mistake("~strategy", "~strategy: keys can't be added or removed"),
    "a32_at": _mistake("model@foo=mlp", "model@foo=mlp"),
    "a33_noeq": _mistake("batch", "batch: can't be read as key=value"),
    "a34_hydrasearch": _mistake("hydra.searchpath=[file:///nonexistent]", "/nonexistent", "no such folder"),
    "a35_hydramode": _mistake("hydra.mode=NONSENSE", "hydra.mode=NONSENSE", "-m"),
    "a36_sweeper": _mistake(
        "hydra/sweeper=optuna -m", "isn't used, for all cells are checked before the first"
    ),
    "a37_launcher": _mistake("hydra/launcher=joblib -m", "no such hydra/launcher; there are basic"),
    "a38_configdir": _own("model=broken", "{fix}/conf/model/broken.yaml", "line 2"),
    "a39_configdirnone": _mistake("--config-dir /nonexistent", "--config-dir /nonexistent: no such folder"),
    "a40_lacks": _own("strategy=lacks", "{fix}/conf/strategy/lacks.yaml: lacks `supports`"),
    "a41_lacks2": _own("strategy=lacks2", "{fix}/conf/strategy/lacks2.yaml: lacks `supports.workers`"),
    "a42_emptyyaml": _own("strategy=empty", "{fix}/conf/strategy/empty.yaml", "mapping"),
    "a43_listyaml": _own("strategy=listy", "{fix}/conf/strategy/listy.yaml", "mapping"),
    "a44_nolaunch": _own("strategy=nolaunch", "strategy.launcher=src.launch.nosuch.Launcher"),
    "a45_noentry": _own("strategy=noentry", "strategy.entry=src.strategies.torch.single.nothere", "nothere"),
    "a46_sha": Case(
        "--config-dir {fix}/conf dataset=wrongsha", ("wrongsha", "could not be fetched", "sha256"), FAILURE
    ),
    "a47_noreader": _own("dataset=noreader", "dataset.reader=nothere.read: no package 'nothere'"),
    "a48_badreader": Case(
        "--config-dir {fix}/conf dataset=badreader", ("badreader", "RuntimeError: reader broke"), FAILURE
    ),
    "a49_nofile": Case("--config-dir {fix}/conf dataset=nofile", ("could not be fetched",), FAILURE),
    "a50_evil": _own("dataset=evilname", "name", "../../../../evil"),
    "a51_resdir": _mistake("resume=/tmp", "resume=/tmp", "a directory"),
    "a52_listinput": _mistake("batch=[1,2]", "batch=[1, 2]: must be a whole number"),
    "a53_dict": _mistake("optimizer=sgd", "optimizer=sgd: must be a mapping with the key name"),
    "a54_model_dict": _mistake("model.hidden=-5 model=mlp", "model.hidden=-5: must be at least 1"),
    "a55_maxmin_env": _mistake("", "SCALEGUIDE_MAX_MINUTES=nan", SCALEGUIDE_MAX_MINUTES="nan"),
    "a56_cache_ro": _mistake(
        "", "SCALEGUIDE_CACHE=/proc/foo: can't be written", SCALEGUIDE_CACHE="/proc/foo"
    ),
    "a57_range": _mistake("-m 'batch=range(1,3)'", "two cells of the sweep would write there"),
    "a58_glob": _mistake("-m 'strategy=glob(*)'", "strategy=glob(*)", "list the values"),
    "a59_workers_huge": _mistake(
        "strategy=ddp workers=100000 hardware.share_devices=true batch=100000", "choose batch <= 640"
    ),
    "a60_cwd": _mistake("--config-dir conf strategy=foo", "--config-dir conf: no such folder"),
    "a61_seed_big": _mistake("seed=99999999999", "must be at most 2147483647"),
    "a62_limit0": _mistake("dataset.limit=0", "dataset.limit=0: must be at least 1"),
    "a63_server_backend": _mistake("tracking.backend=server", "needs MLFLOW_TRACKING_URI"),
    "a64_mpiexec": _failure("strategy=mpi strategy.mpiexec=/bin/true", "mpiexec", keeps=True),
    "a65_mpiexec2": _mistake("strategy=mpi strategy.mpiexec=/nonexistent/mpiexec", "no such program"),
    "a66_speeds": _mistake("strategy=ddp 'hardware.speeds=[1.0,0]'", "numbers above 0"),
    "a67_speeds2": _mistake("strategy=ddp 'hardware.speeds=[1.0,nan]'", "numbers above 0"),
    "a68_partition": _mistake(
        "strategy=pipeline 'strategy.partition=[nosuch.layer]'", "no operation of the model is called that"
    ),
    "a69_sample": _mistake("hardware.sample_seconds=1e-9", "must be at least 0.05"),
    "a70_grace": _fine("model=mlp hardware.grace_minutes=1e308"),
    "a71_target": _mistake("target_accuracy=true", "target_accuracy=True: must be a number"),
    "b_res_garbage": _resume("garbage.pt", NO_CHECKPOINT),
    "b_res_empty": _resume("empty.pt", NO_CHECKPOINT),
    "b_res_bomb": _resume("bomb.pt", NO_CHECKPOINT),
    "b_res_bomb2": _resume("bomb2.pt", NO_CHECKPOINT),
    "b_res_list": _resume("list.pt", NO_CHECKPOINT),
    "b_res_short": _resume("short.pt", NO_CHECKPOINT, "lacks global_batch"),
    "b_res_npz": _resume("bomb.npz", NO_KERAS_CHECKPOINT, words="strategy=tf_single"),
    "b_res_obj": _resume("obj.npz", NO_KERAS_CHECKPOINT, words="strategy=tf_single"),
    "b_res_tfpt": _resume("garbage.pt", NO_KERAS_CHECKPOINT, words="strategy=tf_single"),
    "b_m_notcallable": _model("mods.bad.notcallable", "is an int, not a callable"),
    "b_m_raises": _broken_model("mods.bad.raises", "ValueError: model broke", "bad.py:"),
    "b_m_exits": _broken_model("mods.bad.exits", "SystemExit: 0", "bad.py:"),
    "b_m_exits3": _broken_model("mods.bad.exits3", "SystemExit: 3", "bad.py:"),
    "b_m_nothing": _model("mods.bad.nothing", "returned a NoneType, not a torch.nn.Module"),
    "b_m_missing": _model("mods.bad.missing", "mods.bad has no 'missing'"),
    "b_m_exit": _broken_model("sys.exit", "SystemExit"),
    "b_m_syntax": _broken_model("mods.syntax.x", "SyntaxError", "syntax.py:1"),
    "b_m_hang": _broken_model("mods.bad.hangs", "took longer than", words="hardware.grace_minutes=0.1"),
    "b_m_exits_ddp": _broken_model("mods.bad.exits", "SystemExit: 0", words="strategy=ddp"),
    "b_res_other": _mistake(
        "resume={ck} model=mlp epochs=3", "was written with train samples 1280, and this run has 640"
    ),
    "b_lr_huge": _fine("model=mlp optimizer.lr=1e30"),
    "b_res_other2": _mistake(
        "dataset.limit=1280 resume={ck} model=mlp epochs=3", "is of another model; 1.weight differs"
    ),
    "b_m_syntax2": _broken_model("mods.syntax.x", "SyntaxError", words="strategy=tf_single"),
    "d_m_os_exit0": _failure("model=custom model.path=mods.worse.exit0", "mods.worse.exit0"),
    "d_m_os_exit79": _failure("model=custom model.path=mods.worse.exit79", "mods.worse.exit79"),
    "d_outreadonly": _mistake("out={ro}/x", "out={ro}/x: can't be written", "Read-only", out=False),
    "d_sweep_outro": _mistake("-m seed=0,1 'out={ro}/x${seed}'", "Read-only file system", out=False),
    "d_hydra_output": _mistake(
        "model=mlp hydra.run.dir={out}", "has no effect", "out=DIR says where a run goes"
    ),
    "d_sweepdir": _mistake("-m seed=0 hydra.sweep.dir=/proc/x", "hydra.sweep.dir=/proc/x: can't be written"),
    "d_cfgjob": _mistake("--cfg nosuch", "--cfg/-c: invalid choice: 'nosuch'"),
    # Further ones of the same kinds.
    "e_lr": _mistake("lr=0.1", "did you mean optimizer.lr?"),
    "e_batch_size": _mistake("batch_size=64", "did you mean batch?"),
    "e_max_epochs": _mistake("max_epochs=3", "did you mean epochs?"),
    "e_nproc": _mistake("nproc_per_node=2", "did you mean workers?"),
    "e_gpus": _mistake("gpus=2", "did you mean workers?"),
    "e_seed_text": _mistake("seed=abc", "seed=abc: must be a whole number"),
    "f_source": _mistake(
        "dataset.source=made",
        "dataset.source=made: must be one of original, generated; did you mean original?",
    ),
    "f_standin": _mistake("dataset.source=generated", "mnist has no generated stand-in; leave it away"),
    "f_registered": _registered(
        "",
        "registered: a.zip, b.zip can't be fetched: Register, and download both (https://data.example)",
        "dataset.data_dir=FOLDER, or dataset.source=generated for a stand-in",
    ),
    "f_fraction0": _registered("dataset.fraction=0", "dataset.fraction=0: must be above 0"),
    "f_fraction2": _registered("dataset.fraction=2", "dataset.fraction=2: must be at most 1"),
    "f_fractiontext": _registered("dataset.fraction=some", "dataset.fraction=some: must be a number"),
    "f_seed": _registered("dataset.generator_seed=-1", "dataset.generator_seed=-1: must be at least 0"),
    "f_size": _registered("dataset.size=-1", "dataset.size=-1: must be at least 8"),
    "f_dirnone": _registered("dataset.data_dir={tmp}/nowhere", "data_dir={tmp}/nowhere: no such folder"),
    "f_dirfile": _registered("dataset.data_dir=README.md", "dataset.data_dir=README.md: is no folder"),
    "f_dirempty": _registered(
        "dataset.data_dir={tmp}/here", "data_dir={tmp}/here: lacks a.zip, b.zip; Register, and download both"
    ),
    "f_dirblank": _registered("dataset.data_dir=''", "dataset.data_dir=: must not be empty"),
    "f_fixed": _registered(
        "dataset.licence=none", "licence describes the dataset and is fixed in conf/dataset/"
    ),
    "f_generator": _failure(
        "--config-dir {fix}/conf dataset=registered dataset.source=generated",
        "registered: generator mods.generator.bad: RuntimeError: generator broke",
    ),
    "f_nogenerator": _own(
        "dataset=nogenerator dataset.source=generated",
        "dataset.generator=mods.generator.bda: mods.generator has no 'bda'; did you mean bad?",
    ),
    "f_unpack": _own("dataset=badunpack", "badunpack.yaml: `unpack` must have the most `bytes` and `files`"),
    "f_md5": _own("dataset=badmd5", "badmd5.yaml: `files.a.zip` must be the sha256", "md5:... or null"),
    "f_othersource": _own("dataset=othersource", "`source` must be original or generated, got 'made'"),
    "e_steps": _fine("model=mlp evaluate_every=99999999999999999999"),
    "e_chdir": _mistake("-m seed=0,1 hydra.job.chdir=true", "hydra.job.chdir", out=False),
    "e_multirun_mode": _mistake("hydra.mode=MULTIRUN", "-m"),
    "e_lists": _own("dataset=listfiles", "{fix}/conf/dataset/listfiles.yaml", "files", "mapping"),
    "e_evilfile": _own("dataset=evilfile", "../../x"),
    "e_badsha": _own("dataset=badsha", "{fix}/conf/dataset/badsha.yaml", "files.f.txt", "sha256"),
    "e_badsource": _own("dataset=badsource", "{fix}/conf/dataset/badsource.yaml", "sources"),
    "e_reader": _own("dataset=attribute", "dataset.reader=mods.reader.badreadr", "did you mean badreader?"),
    "e_tabs": _own("model=tabs", "{fix}/conf/model/tabs.yaml", "line 2"),
    "e_latin": _own("model=latin", "{fix}/conf/model/latin.yaml", "UTF-8"),
    "e_nowhere": _own("model=nowhere", "model.torch=src.models.torch.mpl.build", "did you mean mlp?"),
    "e_none": _own("model=none", "{fix}/conf/model/none.yaml", "torch"),
    "e_number": _own("model=number", "{fix}/conf/model/number.yaml", "name"),
    "e_hardware": _own("hardware=nameless", "{fix}/conf/hardware/nameless.yaml: `name` must be a word"),
    "e_hardware2": _own(
        "hardware=misspelt", "misspelt.yaml: `cores_per_devise` is no key", "did you mean cores_per_device?"
    ),
    "e_hardware3": _own("hardware=words", "words.yaml: hardware.cores_per_device=many: must be a whole"),
    "e_lacks3": _own("strategy=lacks3", "strategy/lacks3.yaml: lacks `supports.workers.min`"),
    "e_listsupports": _own(
        "strategy=listsupports", "strategy/listsupports.yaml", "`supports` must be a mapping"
    ),
    "e_framework": _own("strategy=otherframework", "strategy/otherframework.yaml", "framework", "jax"),
    "e_nolauncher": _own("strategy=nolauncher", "strategy/nolauncher.yaml: lacks `launcher`"),
    "e_numberentry": _own("strategy=numberentry", "strategy/numberentry.yaml", "entry"),
    "e_needs": _own("strategy=needsnothing", "strategy/needsnothing.yaml", "bacth"),
    "e_text": _own("strategy=text", "strategy/text.yaml", "mapping"),
    "e_words": _resume("words.pt", NO_CHECKPOINT),
    "e_seven": _resume("seven.pt", NO_CHECKPOINT),
    "e_option": _model("mods.bad.takes_width", "width"),
    "e_option2": _model(
        "mods.bad.takes_width", "no option 'depth'", words="+model.options.width=5 +model.options.depth=5"
    ),
    "e_import": _broken_model("mods.importing.x", "ModuleNotFoundError", "importing.py:1"),
    "e_stops": _broken_model("mods.stops.x", "SystemExit: 5"),
    "e_nomodule": _model("mods.nothing.x", "mods has no 'nothing'"),
    "g_tp_form": _split("1,4", "must name layers and how each is split, as [layers.*.w1:colwise"),
    "g_tp_path": _split("1:colwise,5:rowwise", "5 names no layer of the model; did you mean 4?"),
    "g_tp_none": _mistake(
        "strategy=tensor_parallel model=lstm", "no layers that are recognised as two that workers=2 can split"
    ),
    "g_tp_heads": _split(
        ",".join((*(f"between.{name}:colwise" for name in ("query", "key", "value")), "between.out:rowwise")),
        "split by strategy.plan the model fails",
        "heads must divide by workers=8",
        words="model=custom model.path=tests.plugin.model.split.heads workers=8 hardware.share_devices=true",
    ),
    "e_pretrained": _mistake(
        "model=resnet18 model.pretrained={fix}/garbage.pt", "model.pretrained=", "is no file of torch weights"
    ),
    "e_resdev": _mistake("resume=/dev/zero", "resume=/dev/zero", "no regular file"),
    "e_devnull": _mistake("out=/dev/null/x", "out=/dev/null/x", out=False),
    "e_dev": _mistake("out=/dev/x", "out=/dev/x: can't be written", out=False),
    "e_cachefile": _mistake("", "SCALEGUIDE_CACHE=README.md", SCALEGUIDE_CACHE="README.md"),
}
