/* Ops over stacks of experts, plainly: one thread, by the references. */
#include "backend/cpu/cpu.h"

#define PLAIN(name)                                                                                                                        \
  gr_status gr_cpu_run_##name(gr_backend *b, const gr_op_call *call, gr_error *e)                                                          \
  {                                                                                                                                        \
    (void)b;                                                                                                                               \
    (void)e;                                                                                                                               \
    gr_op_get(call->op)->reference(call);                                                                                                  \
    return GR_OK;                                                                                                                          \
  }
PLAIN(route)
PLAIN(route_back)
PLAIN(group_experts)
PLAIN(matmul_id)
PLAIN(matmul_id_back)
PLAIN(out_prod_id)
PLAIN(combine)
PLAIN(combine_back)
PLAIN(slice_back)
PLAIN(sigmoid)
PLAIN(sigmoid_back)
