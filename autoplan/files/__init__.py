"""The doors (floor 1): every file that autoplan reads or writes, and nothing else.

A door has two sides. Outside is JSON that people write: units in the keys, evidence beside the
numbers, names that may be misspelt. Inside are the frozen nouns of `ir`, in bytes, seconds and
FLOP, whose fields are known to be sane. So no other package parses a file, converts a unit or asks
whether a number is finite.

    hf_config       Hugging Face config.json       -> DecoderConfig       `load_model`
      hf_rotary, hf_learned: families · hf_fields: what they share · hub: cache and download
    model           normalised model in a plan     <-> DecoderConfig
    machine_spec    NAME:16x8 and --set            -> Hardware            `load_hardware`
    hardware        hardware profile               <-> Hardware
    stack           stack profile                  <-> Stack              `load_stack`
    workload        workload                       <-> Workload
    plan            plan.json                      <-> Plan
    program         program.json                   <-> Program
    topology        `nvidia-smi topo -m`           -> Topology            `read_topology`
    nccl_log        log of nccl-tests              -> NcclLog             `read_nccl_log`
    checkpoint      checkpoint.json                <-> Checkpoint         `read_checkpoint`
    runs            recorded runs: JSONL, CSV      -> Record              `read_runs`
      run_format: its keys · run_logs: training logs of Megatron-LM and torchtitan
    launch_config   other software's configuration -> Launch              `read_launch`
      launch_megatron, launch_torchtitan, launch_deepspeed: by software
      launch_shell, shell_words: scripts · launch_settings: what is taken, wrong and left
    text            JSON text: strict reading, canonical writing, digests

Every reader raises one InputError that carries *all* problems it found, each with file, JSON path,
what stands there, what may stand there, and the nearest spelling. Schemas are pydantic models whose
field names are the keys of the file (`*File`, `*Document`); checks across fields are plain
functions beside them. Two rules keep typing errors from passing silently: our own files allow no
unknown field, and in a Hugging Face config, where unknown keys are normal, a key that nearly spells
an absent one is a problem. In other software's configurations, whose keys nobody can know all of, a
key is understood, known not to change a step, understood but without a price, or told as not
understood; none is dropped in silence.

Laws, tested: `parse(dump(noun)) == noun`; `dump` is byte-stable, with sorted keys wherever order
has no meaning; a mutated file either loads or raises InputError, never anything else.
"""
