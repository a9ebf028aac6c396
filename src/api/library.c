/* A shared library needs a source of its own; everything is in the rooms it is linked from. */
#include "graft/graft.h"

typedef int gr_library_has_no_code_of_its_own;
