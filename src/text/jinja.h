/* The Jinja engine's inside, shared by jinja_*.c; chat.h is the room's face.
 *
 * A template is lexed and parsed once into a tree that never changes (jinja_lex.c, jinja_parse.c, jinja_expr.c) and is walked
 * by an evaluator (jinja_eval.c, jinja_exec.c). All values of one render live in one arena and die together; every allocation
 * and every step is charged to the render's limits, so that a hostile template ends in an error in bounded time and memory.
 * Nothing outside the values given to a render can be reached: attributes exist only where a switch in this code names them.
 *
 * Every string knows the origin of each of its bytes as runs of tags. Functions that make strings out of strings copy bytes
 * through a gr_jinja_builder together with their tags; that is the one rule that keeps origins right. */
#ifndef GR_TEXT_JINJA_H
#define GR_TEXT_JINJA_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "base/arena.h"
#include "base/error.h"
#include "text/chat.h"
#include "text/utf8.h"

/* --- Tags: where a byte comes from ------------------------------------------------------------------------------------------ */

/* Low half: origin (2 bits), control (1), field (3), message (26). High half: the serial number of the {% generation %} block
 * that wrote the byte, 0 for none. Tag 0 is "the template wrote this, outside any block". */
typedef uint64_t jinja_tag;

enum { JINJA_TAG_CONTROL = 4, JINJA_TAG_MESSAGE_MAX = (1 << 26) - 1 };
#define JINJA_TAG_ORIGIN UINT64_C(0xffffffff)

static inline jinja_tag jinja_tag_make(gr_origin origin, gr_field field, size_t message)
{
  return (jinja_tag)origin | (jinja_tag)field << 3 | (jinja_tag)(message & JINJA_TAG_MESSAGE_MAX) << 6;
}
static inline gr_origin jinja_tag_origin(jinja_tag t) { return (gr_origin)(t & 3); }
static inline gr_field jinja_tag_field(jinja_tag t) { return (gr_field)(t >> 3 & 7); }
static inline size_t jinja_tag_message(jinja_tag t) { return (size_t)(t >> 6 & JINJA_TAG_MESSAGE_MAX); }
static inline bool jinja_tag_control(jinja_tag t) { return (t & 3) == GR_ORIGIN_TEMPLATE || (t & JINJA_TAG_CONTROL); }
/* The tag of something computed from both: that of the first which is not the template's own. */
static inline jinja_tag jinja_tag_join(jinja_tag a, jinja_tag b)
{
  return (a & 3) != GR_ORIGIN_TEMPLATE ? a & JINJA_TAG_ORIGIN : b & JINJA_TAG_ORIGIN;
}

/* --- Values ------------------------------------------------------------------------------------------------------------------ */

typedef enum jinja_type {
  JINJA_ABSENT, /* an argument that was not given; never a value of the language */
  JINJA_UNDEFINED,
  JINJA_NONE,
  JINJA_BOOL,
  JINJA_INT,
  JINJA_FLOAT,
  JINJA_STRING,
  JINJA_LIST, /* and tuple */
  JINJA_DICT,
  JINJA_NAMESPACE,
  JINJA_LOOP,
  JINJA_FUNCTION, /* a global function: an entry of the table in jinja_call.c */
  JINJA_METHOD,   /* a method with its object */
  JINJA_MACRO     /* also caller() */
} jinja_type;

typedef struct jinja_string jinja_string;
typedef struct jinja_list jinja_list;
typedef struct jinja_dict jinja_dict;
typedef struct jinja_loop jinja_loop;
typedef struct jinja_bound jinja_bound;
typedef struct jinja_macro jinja_macro;
typedef struct jinja_node jinja_node;
typedef struct jinja_ctx jinja_ctx;
typedef struct jinja_args jinja_args;

typedef struct jinja_value {
  jinja_type type;
  jinja_tag tag; /* of the whole value; a string with runs has them instead */
  union {
    bool boolean;
    int64_t integer;
    double real;
    const char *hint; /* JINJA_UNDEFINED: what was looked up, or NULL */
    const jinja_string *string;
    jinja_list *list;
    jinja_dict *dict; /* JINJA_DICT and JINJA_NAMESPACE */
    jinja_loop *loop;
    const jinja_bound *bound;
    const jinja_macro *macro;
    size_t function;
  } u;
} jinja_value;

typedef struct jinja_run {
  size_t end; /* bytes from the previous run's end (or 0) up to here */
  jinja_tag tag;
} jinja_run;

/* Immutable, valid UTF-8, not NUL-terminated. */
struct jinja_string {
  const char *data;
  size_t len;
  const jinja_run *runs; /* NULL when the value's tag is that of all bytes */
  size_t n_runs;
};

struct jinja_list {
  jinja_value *items;
  size_t n, cap;
  bool tuple;
};

typedef struct jinja_entry {
  jinja_value key, value;
} jinja_entry;

struct jinja_dict {
  jinja_entry *entries; /* in insertion order */
  size_t n, cap;
};

struct jinja_bound {
  jinja_value self;
  size_t method;
};

struct jinja_args {
  jinja_value *positional;
  size_t n;
  const char *const *names; /* of the keyword arguments */
  jinja_value *keyword;
  size_t n_keyword;
};

/* --- The tree ---------------------------------------------------------------------------------------------------------------- */

typedef enum jinja_kind {
  /* expressions */
  JINJA_NODE_CONST,   /* value */
  JINJA_NODE_NAME,    /* symbol */
  JINJA_NODE_LIST,    /* list */
  JINJA_NODE_TUPLE,   /* list */
  JINJA_NODE_DICT,    /* list: key, value, key, value, ... */
  JINJA_NODE_ATTR,    /* a.text */
  JINJA_NODE_ITEM,    /* a[b] */
  JINJA_NODE_SLICE,   /* a[list[0]:list[1]:list[2]], NULL where left out */
  JINJA_NODE_CALL,    /* a(arguments) */
  JINJA_NODE_FILTER,  /* a | text(arguments); a is NULL for the filter of a filter block or block set */
  JINJA_NODE_TEST,    /* a is [not] text(arguments) */
  JINJA_NODE_UNARY,   /* op a */
  JINJA_NODE_BINARY,  /* a op b */
  JINJA_NODE_COMPARE, /* a list[0].op list[0].a, ... : a chain */
  JINJA_NODE_COND,    /* b if a else c */
  JINJA_NODE_CONCAT,  /* list joined with ~ */
  /* statements */
  JINJA_NODE_TEXT,         /* text */
  JINJA_NODE_OUTPUT,       /* {{ a }} */
  JINJA_NODE_IF,           /* if a: body, else: orelse (an elif is an if alone in orelse) */
  JINJA_NODE_FOR,          /* for b in a [if c]: body, else: orelse */
  JINJA_NODE_SET,          /* b = a, or with a NULL: b = body filtered by c */
  JINJA_NODE_MACRO,        /* symbol, list of parameter names, defaults in arguments, body */
  JINJA_NODE_CALL_BLOCK,   /* a is the call; macro_body is the block as a macro */
  JINJA_NODE_FILTER_BLOCK, /* c is the filter chain, body */
  JINJA_NODE_WITH,         /* list: target, value, ...; body */
  JINJA_NODE_GENERATION,   /* body */
  JINJA_NODE_BREAK,
  JINJA_NODE_CONTINUE
} jinja_kind;

typedef enum jinja_op {
  JINJA_OP_NONE,
  JINJA_OP_ADD,
  JINJA_OP_SUB,
  JINJA_OP_MUL,
  JINJA_OP_DIV,
  JINJA_OP_FLOORDIV,
  JINJA_OP_MOD,
  JINJA_OP_POW,
  JINJA_OP_NOT,
  JINJA_OP_NEG,
  JINJA_OP_POS,
  JINJA_OP_AND,
  JINJA_OP_OR,
  JINJA_OP_EQ,
  JINJA_OP_NE,
  JINJA_OP_LT,
  JINJA_OP_LE,
  JINJA_OP_GT,
  JINJA_OP_GE,
  JINJA_OP_IN,
  JINJA_OP_NOT_IN
} jinja_op;

typedef struct jinja_nodes {
  jinja_node **items;
  size_t n;
} jinja_nodes;

typedef struct jinja_arg_nodes {
  jinja_nodes positional;
  const char **names; /* of the keyword arguments */
  jinja_nodes keyword;
} jinja_arg_nodes;

struct jinja_node {
  jinja_kind kind;
  jinja_op op;
  uint32_t line;
  uint32_t symbol; /* JINJA_NODE_NAME, JINJA_NODE_MACRO */
  bool negated;    /* JINJA_NODE_TEST: is not */
  jinja_node *a, *b, *c;
  jinja_nodes list, body, orelse;
  jinja_arg_nodes args;
  const char *text; /* NUL-terminated: attribute, filter, test or symbol name; JINJA_NODE_TEXT: len bytes */
  size_t len;
  size_t entry; /* JINJA_NODE_FILTER, JINJA_NODE_TEST: index in their table, SIZE_MAX when there is no such name */
  jinja_value value;
};

struct gr_template {
  gr_arena arena;
  const char *name, *source;
  jinja_nodes body;
  const char **symbols; /* names of variables, by number */
  size_t n_symbols, cap_symbols;
  bool has_generation;
  uint32_t loop_symbol, caller_symbol; /* UINT32_MAX when the template does not mention them */
};

/* --- Lexer and parser (jinja_lex.c, jinja_parse.c, jinja_expr.c) ---------------------------------------------------------------- */

typedef enum jinja_token_kind {
  JINJA_TOKEN_END,
  JINJA_TOKEN_TEXT,
  JINJA_TOKEN_OUTPUT_BEGIN,
  JINJA_TOKEN_OUTPUT_END,
  JINJA_TOKEN_BLOCK_BEGIN,
  JINJA_TOKEN_BLOCK_END,
  JINJA_TOKEN_NAME,
  JINJA_TOKEN_STRING, /* text: decoded */
  JINJA_TOKEN_INT,
  JINJA_TOKEN_FLOAT,
  JINJA_TOKEN_OP /* text: the operator, one or two characters */
} jinja_token_kind;

typedef struct jinja_token {
  jinja_token_kind kind;
  uint32_t line;
  const char *text; /* in the template's arena, NUL-terminated unless it is JINJA_TOKEN_TEXT */
  size_t len;
  int64_t integer;
  double real;
} jinja_token;

typedef struct jinja_parser {
  gr_template *t;
  gr_error *e;
  jinja_token *tokens;
  size_t n_tokens, cap_tokens, at;
  int depth, loops;
  gr_status status; /* the first failure; GR_OK while parsing */
} jinja_parser;

/* Records the first error, with the line; returns NULL for `return gr_jinja_syntax(...)`. */
void *gr_jinja_syntax(jinja_parser *p, gr_status status, uint32_t line, const char *fmt, ...) GR_PRINTF(4, 5);
void *gr_jinja_parse_alloc(jinja_parser *p, size_t bytes); /* from the template's arena, zeroed */
bool gr_jinja_lex(jinja_parser *p, const char *text, size_t n);

const jinja_token *gr_jinja_peek(const jinja_parser *p);
bool gr_jinja_is_name(const jinja_parser *p, const char *name);
bool gr_jinja_is_op(const jinja_parser *p, const char *op);
bool gr_jinja_skip_name(jinja_parser *p, const char *name);
bool gr_jinja_skip_op(jinja_parser *p, const char *op);
bool gr_jinja_expect_op(jinja_parser *p, const char *op);
const char *gr_jinja_describe(const jinja_token *t, char room[64]);
jinja_node *gr_jinja_node(jinja_parser *p, jinja_kind kind, uint32_t line);
bool gr_jinja_push(jinja_parser *p, jinja_nodes *list, size_t *cap, jinja_node *item);
uint32_t gr_jinja_symbol(jinja_parser *p, const char *name); /* its number; UINT32_MAX on failure */
bool gr_jinja_deeper(jinja_parser *p);                       /* counts a level of nesting; undo with p->depth-- */

jinja_node *gr_jinja_parse_expr(jinja_parser *p, bool with_cond);
jinja_node *gr_jinja_parse_tuple(jinja_parser *p, bool with_cond, bool targets); /* a, b, c without brackets; one alone is itself */
jinja_node *gr_jinja_parse_target(jinja_parser *p, bool attributes);             /* what may be assigned to */
jinja_node *gr_jinja_parse_postfix(jinja_parser *p, jinja_node *node);
/* A chain of | filters without its input, NULL when there is none (or on failure); bare: the first has no | before it. */
jinja_node *gr_jinja_parse_filters(jinja_parser *p, bool bare);
jinja_node *gr_jinja_parse_primary(jinja_parser *p);

/* --- A render ----------------------------------------------------------------------------------------------------------------- */

typedef struct jinja_binding {
  uint32_t symbol;
  jinja_value value;
} jinja_binding;

/* Variables of a block. Scopes live in the arena and are never freed, as macros may hold on to them. */
typedef struct jinja_scope {
  struct jinja_scope *parent; /* NULL: next are the globals */
  jinja_binding *vars;
  size_t n, cap;
  bool captured; /* a macro was defined here */
} jinja_scope;

struct jinja_macro {
  const jinja_node *node;
  jinja_scope *scope; /* where it was defined */
};

struct jinja_loop {
  const jinja_list *items;
  size_t at;
  jinja_value changed; /* the last argument of loop.changed() */
};

/* Bytes and their tags, growing. Zero-initialised; gr_jinja_builder_free when not finished. */
typedef struct gr_jinja_builder {
  char *data;
  size_t len, cap;
  jinja_run *runs;
  size_t n_runs, cap_runs;
} gr_jinja_builder;

struct jinja_ctx {
  const gr_template *t;
  gr_error *e;
  gr_status status; /* of the first failure */
  gr_arena arena;
  uint32_t line; /* being evaluated */
  size_t steps_left, bytes_left, depth_left;
  jinja_value *globals; /* by symbol */
  gr_jinja_builder *out;
  jinja_value filtered; /* the input of a filter chain that has none of its own */
  uint32_t mark, marks; /* the open generation block, and how many there have been */
  int flow;             /* JINJA_FLOW_* */
  int64_t now;
  bool json_containers, parse_arguments;
  json_t **parsed; /* tool-call arguments that were strings; owned */
  size_t n_parsed, cap_parsed;
};

enum { JINJA_FLOW_ON, JINJA_FLOW_BREAK, JINJA_FLOW_CONTINUE };

/* Every function below that returns bool returns false after a failure, with the sentence in ctx->e. */
bool gr_jinja_fail(jinja_ctx *ctx, gr_status status, const char *fmt, ...) GR_PRINTF(3, 4);
bool gr_jinja_steps(jinja_ctx *ctx, size_t steps);  /* charges work; false when the limit is reached */
void *gr_jinja_alloc(jinja_ctx *ctx, size_t bytes); /* zeroed; NULL after a failure */
void *gr_jinja_array(jinja_ctx *ctx, size_t n, size_t size);
bool gr_jinja_enter(jinja_ctx *ctx); /* one level deeper; undo with ctx->depth_left++ */

/* chat.c: gr_template_render of the first n messages alone. */
gr_status gr_jinja_render(const gr_template *t, const json_t *messages, size_t n, const gr_render_options *o, gr_rendered *out,
                          gr_error *e);

/* jinja_value.c */
const char *gr_jinja_type_name(const jinja_value *v);
jinja_value gr_jinja_undefined(const char *hint);
jinja_value gr_jinja_none(void);
jinja_value gr_jinja_bool(bool b);
jinja_value gr_jinja_int(int64_t i, jinja_tag tag);
jinja_value gr_jinja_float(double d, jinja_tag tag);
bool gr_jinja_string(jinja_ctx *ctx, const char *data, size_t n, jinja_tag tag, jinja_value *out); /* borrows data */
bool gr_jinja_literal(jinja_ctx *ctx, const char *s, jinja_value *out);                            /* the template's own bytes */
bool gr_jinja_substring(jinja_ctx *ctx, const jinja_value *s, size_t from, size_t to, jinja_value *out);
jinja_tag gr_jinja_tag_of(const jinja_value *v);            /* of a value as a whole */
jinja_tag gr_jinja_tag_at(const jinja_value *s, size_t at); /* of one byte of a string */
bool gr_jinja_list(jinja_ctx *ctx, size_t cap, jinja_value *out);
bool gr_jinja_list_add(jinja_ctx *ctx, jinja_list *l, jinja_value v);
bool gr_jinja_pair(jinja_ctx *ctx, jinja_value a, jinja_value b, jinja_value *out); /* a tuple */
bool gr_jinja_dict(jinja_ctx *ctx, size_t cap, jinja_value *out);
bool gr_jinja_dict_put(jinja_ctx *ctx, jinja_dict *d, jinja_value key, jinja_value value); /* replaces an equal key */
bool gr_jinja_dict_get(jinja_ctx *ctx, const jinja_dict *d, const jinja_value *key, jinja_value *out, bool *found);
bool gr_jinja_dict_find(jinja_ctx *ctx, const jinja_dict *d, const char *key, jinja_value *out, bool *found);
bool gr_jinja_truth(const jinja_value *v);
bool gr_jinja_equal(jinja_ctx *ctx, const jinja_value *a, const jinja_value *b, bool *out);
bool gr_jinja_order(jinja_ctx *ctx, const jinja_value *a, const jinja_value *b, int *out); /* -1, 0, 1; fails on unlike types */
bool gr_jinja_contains(jinja_ctx *ctx, const jinja_value *box, const jinja_value *item, bool *out);
bool gr_jinja_iterate(jinja_ctx *ctx, const jinja_value *v, jinja_value *list); /* what `for` walks over, as a list */
bool gr_jinja_hashable(jinja_ctx *ctx, const jinja_value *v);
static inline bool jinja_is_text(const jinja_value *v, const char *s, size_t n)
{
  return v->type == JINJA_STRING && v->u.string->len == n && !memcmp(v->u.string->data, s, n);
}

/* jinja_text.c */
bool gr_jinja_put(jinja_ctx *ctx, gr_jinja_builder *b, const char *bytes, size_t n, jinja_tag tag);
bool gr_jinja_put_string(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *s);
bool gr_jinja_put_part(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *s, size_t from, size_t to);
bool gr_jinja_finish(jinja_ctx *ctx, gr_jinja_builder *b, bool ok, jinja_value *out); /* frees b; out only when ok */
void gr_jinja_builder_free(jinja_ctx *ctx, gr_jinja_builder *b);
bool gr_jinja_put_text(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v); /* as {{ v }} prints it */
bool gr_jinja_text(jinja_ctx *ctx, const jinja_value *v, jinja_value *out);        /* the same, as a string value */
size_t gr_jinja_float_text(double d, char room[40]);                               /* Python's repr of a float */

/* jinja_json.c */
typedef struct jinja_json_style {
  const jinja_value *indent; /* string for one level, or NULL for one line */
  const char *comma, *colon; /* separators */
  size_t comma_len, colon_len;
  bool ascii, sort_keys;
} jinja_json_style;
bool gr_jinja_put_json(jinja_ctx *ctx, gr_jinja_builder *b, const jinja_value *v, const jinja_json_style *style);
bool gr_jinja_tojson(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out);
bool gr_jinja_from_json(jinja_ctx *ctx, const json_t *json, jinja_tag tag, jinja_value *out);
bool gr_jinja_messages(jinja_ctx *ctx, const json_t *messages, size_t n, jinja_value *out); /* the first n, each field with its origin */

/* jinja_eval.c, jinja_ops.c, jinja_exec.c */
bool gr_jinja_eval(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *node, jinja_value *out);
bool gr_jinja_eval_args(jinja_ctx *ctx, jinja_scope *scope, const jinja_arg_nodes *nodes, jinja_args *out);
bool gr_jinja_binary(jinja_ctx *ctx, jinja_op op, const jinja_value *a, const jinja_value *b, jinja_value *out);
bool gr_jinja_compare(jinja_ctx *ctx, jinja_op op, const jinja_value *a, const jinja_value *b, bool *out);
bool gr_jinja_negate(jinja_ctx *ctx, const jinja_value *a, jinja_value *out);
bool gr_jinja_slice(jinja_ctx *ctx, const jinja_value *v, const jinja_value bounds[3], jinja_value *out);
bool gr_jinja_item(jinja_ctx *ctx, const jinja_value *v, const jinja_value *key, jinja_value *out);       /* v[key] */
bool gr_jinja_attr(jinja_ctx *ctx, const jinja_value *v, const char *name, jinja_value *out);             /* v.name */
bool gr_jinja_attr_path(jinja_ctx *ctx, const jinja_value *v, const jinja_value *path, jinja_value *out); /* "a.b.0" */
bool gr_jinja_call(jinja_ctx *ctx, const jinja_value *callee, const jinja_args *args, jinja_value *out);
bool gr_jinja_call_macro(jinja_ctx *ctx, const jinja_macro *m, const jinja_args *args, const jinja_macro *caller, jinja_value *out);
bool gr_jinja_exec(jinja_ctx *ctx, jinja_scope *scope, const jinja_nodes *body);
jinja_scope *gr_jinja_scope(jinja_ctx *ctx, jinja_scope *parent);
bool gr_jinja_assign(jinja_ctx *ctx, jinja_scope *scope, const jinja_node *target, jinja_value v);
bool gr_jinja_bind_var(jinja_ctx *ctx, jinja_scope *scope, uint32_t symbol, jinja_value v);

/* Tables: functions, methods, filters, tests. An entry is SIZE_MAX when there is none of that name. */
typedef bool jinja_filter_fn(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out);
typedef bool jinja_test_fn(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, bool *out);
typedef struct jinja_filter_entry {
  const char *name;
  jinja_filter_fn *apply;
} jinja_filter_entry;
bool gr_jinja_length(jinja_ctx *ctx, const jinja_value *in, const jinja_args *args, jinja_value *out);
size_t gr_jinja_filter_find(const char *name, size_t n);
bool gr_jinja_filter_apply(jinja_ctx *ctx, size_t entry, const jinja_value *in, const jinja_args *args, jinja_value *out);
const jinja_filter_entry *gr_jinja_list_filters(size_t *n); /* jinja_filter_list.c: those over sequences */
size_t gr_jinja_test_find(const char *name, size_t n);
bool gr_jinja_test_apply(jinja_ctx *ctx, size_t entry, const jinja_value *in, const jinja_args *args, bool *out);
bool gr_jinja_test_wants_argument(const char *name);
size_t gr_jinja_function_find(const char *name);
bool gr_jinja_function_call(jinja_ctx *ctx, size_t entry, const jinja_args *args, jinja_value *out);
size_t gr_jinja_method_find(jinja_type type, const char *name);
bool gr_jinja_method_call(jinja_ctx *ctx, size_t entry, const jinja_value *self, const jinja_args *args, jinja_value *out);

/* jinja_split.c: methods of strings */
bool gr_jinja_split(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out);
bool gr_jinja_rsplit(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out);
bool gr_jinja_splitlines(jinja_ctx *ctx, const jinja_value *self, const jinja_args *args, jinja_value *out);

/* Sorts arguments into params by position and name; those not given are JINJA_ABSENT. `who` is for the error. */
bool gr_jinja_bind(jinja_ctx *ctx, const char *who, const jinja_args *args, const char *const *params, size_t n_params, size_t required,
                   jinja_value *out);
bool gr_jinja_parse_int(const char *s, size_t n, int64_t base, int64_t *out); /* as int() of a string; false when it is none */
bool gr_jinja_parse_real(const char *s, size_t n, double *out);               /* as float() of a string */
bool gr_jinja_want_string(jinja_ctx *ctx, const char *who, const jinja_value *v);
bool gr_jinja_want_int(jinja_ctx *ctx, const char *who, const jinja_value *v, int64_t *out); /* bools count as 0 and 1 */

/* jinja_string.c: shared by filters and methods */
typedef enum jinja_side { JINJA_LEFT = 1, JINJA_RIGHT = 2, JINJA_BOTH = 3 } jinja_side;
/* chars: a string, or NULL for white space */
bool gr_jinja_strip(jinja_ctx *ctx, const jinja_value *s, const jinja_value *chars, jinja_side side, jinja_value *out);
bool gr_jinja_replace(jinja_ctx *ctx, const jinja_value *s, const jinja_value *old, const jinja_value *new_text, int64_t count,
                      jinja_value *out);
typedef enum jinja_case { JINJA_UPPER, JINJA_LOWER, JINJA_TITLE, JINJA_CAPITALIZE, JINJA_TITLE_WORDS } jinja_case;
bool gr_jinja_recase(jinja_ctx *ctx, const jinja_value *s, jinja_case how, jinja_value *out);
bool gr_jinja_join(jinja_ctx *ctx, const jinja_list *l, const jinja_value *separator, jinja_value *out);
bool gr_jinja_format(jinja_ctx *ctx, const jinja_value *format, const jinja_value *args, size_t n, jinja_value *out);
bool gr_jinja_strftime(jinja_ctx *ctx, const jinja_value *format, jinja_value *out);

/* jinja_chars.c */
size_t gr_jinja_utf8_length(const char *s, size_t n);               /* code points */
size_t gr_jinja_utf8_offset(const char *s, size_t n, size_t index); /* byte offset of a code point, at most n */
/* Bytes of the first code point, n > 0; a malformed byte counts as one. */
static inline size_t jinja_next(const char *s, size_t n, uint32_t *cp)
{
  size_t length = gr_utf8_length(s, n);
  *cp = length ? gr_utf8_decode(s, length) : 0xfffd;
  return length ? length : 1;
}
bool gr_jinja_space(uint32_t cp); /* what Python's str.isspace and strip count */
uint32_t gr_jinja_upper(uint32_t cp);
uint32_t gr_jinja_lower(uint32_t cp);

#endif
