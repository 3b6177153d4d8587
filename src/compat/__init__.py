"""List every private part of a library that is used here, and what would replace it.

A library may change these without notice, hence the upper bounds in `pyproject.toml`. No code outside this
package uses another library's private names.

library      private part                             what for; what replaces it
-----------  ---------------------------------------  ---------------------------------------------------
hydra-core   _internal.utils.get_args_parser          flags that may stand anywhere in a command line; a
                                                      public parser
hydra-core   _internal.core_plugins.basic_sweeper     how `-m` splits a sweep; a public `split_arguments`
lightning    _broadcast_sigterm_tensor of its epoch   no broadcast before each batch; a flag of `Trainer`
             loop
lightning    DDPStrategy._register_ddp_hooks          DDP hooks on CPUs too; `ddp_comm_hook=` there
torch        pipelining.schedules._wait_batch_p2p     when a stage waits; a hook of the schedules
torch        PipelineStage._warmup_forward_vote,      no tensors sent before the first step; shapes that
             ._warmup_backward_result,                are given say all
             ._get_init_p2p_neighbors_ops
torch        PipelineScheduleSingle                   a schedule of one's own; torch's documentation says
             ._step_microbatches, and what it calls   to derive from the class by this method
torch        _subclasses.FakeTensorMode               shapes without data; tensors on the `meta` device
torch        nn.modules.batchnorm._BatchNorm          BatchNorm of any dimension; a public base class
torch        DistributedDataParallel                  what a step under DDP compiles, compiled before it;
             ._inside_ddp_forward                     a public way to compile ahead
torch        distributed_c10d                         the work of a call that is done already; a public
             ._create_work_from_future                constructor of `Work`
torch        ops.aten._scaled_dot_product_            FLOPs of attention on a CPU; formulas in torch's
             flash_attention_for_cpu                  own counter
torch        testing._internal.distributed.fake_pg    a group of many ranks in one process, which send
                                                      nothing; a public backend of that kind
torch        UntypedStorage._cdata                    whether tensors without data share memory
mlflow       RunData._metric_objs                     the last step of each metric of a run; a public
                                                      property
tensorflow   tsl.profiler.protobuf.xplane_pb2         what its profiler writes; a Chrome trace, which it
                                                      wrote earlier
keras        Model._nodes_by_depth                    calls of operations in order; `Model.operations` has
                                                      no calls
keras        Layer._call_has_training_arg             whether a layer takes `training=`
keras        Layer._flatten_layers                    layers within layers
keras        Optimizer._all_reduce_sum_gradients      the gradients summed over replicas, to clip
                                                      these; clipping after the sum, as Keras 2 had it
keras        Optimizer._get_variable_index            which slot belongs to a variable; a public `get_slot`
keras        Optimizer._learning_rate                 an optimizer's schedule; a property that doesn't call it
"""
