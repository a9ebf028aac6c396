/* Reports and errors name every node. Model code names what has a name in the file; the rest is called after its op and what it works on:
 * "rope(blk.0.attn_q.weight)", "grad out_prod(blk.0.ffn_up.weight)". */
#include <string.h>

#include "graph/plan.h"

/* What a tensor's name is about: the part in parentheses of one that was made here, all of any other. */
static size_t subject_of(const gr_tensor *t, const char **subject)
{
  const char *name = t->name[0] ? t->name : gr_tensor_root(t)->name, *open = strchr(name, '('), *close = strrchr(name, ')');
  *subject = open && close ? open + 1 : name;
  return open && close ? (size_t)(close - open - 1) : strlen(name);
}

static bool is_weight(const gr_tensor *t)
{
  const gr_tensor *root = gr_tensor_root(t);
  return root->leaf == GR_LEAF_WEIGHT || root->leaf == GR_LEAF_PARAM;
}

/* After a weight among the inputs, if there is one, else after the first input that has a name. */
static void name_node(gr_node *node)
{
  const char *subject = "";
  size_t length = 0;
  for (int weights = 1; weights >= 0 && length == 0; weights--)
    for (int i = 0; i < node->n_in && length == 0; i++)
      if (node->in[i] && is_weight(node->in[i]) == (weights != 0)) length = subject_of(node->in[i], &subject);
  static const char *const prefix[] = { [GR_PHASE_FORWARD] = "", [GR_PHASE_BACKWARD] = "grad ", [GR_PHASE_RECOMPUTE] = "again " };
  gr_tensor_name(node->out[0], "%s%s(%.*s)", prefix[node->phase], gr_op_name(node->op), (int)length, subject);
}

gr_status gr_plan_name(gr_plan *p, gr_error *e)
{
  for (size_t i = 0; i < p->n_schedule; i++) {
    gr_node *node = p->schedule[i];
    if (!node->out[0]->name[0]) name_node(node);
    for (int k = 1; k < node->n_out; k++)
      if (!node->out[k]->name[0]) gr_tensor_name(node->out[k], "%s:%d", node->out[0]->name, k);
  }
  return gr_graph_status(p->graph, e);
}
