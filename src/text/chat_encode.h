/* A conversation to the tokens that a model is asked with. */
#ifndef GR_TEXT_CHAT_ENCODE_H
#define GR_TEXT_CHAT_ENCODE_H
#include "text/chat.h"
#include "text/tokenizer.h"

/* Renders the messages with the prompt of the assistant's turn; control tokens are recognised only where the template wrote them. Errors
 * are those of rendering. */
gr_status gr_chat_encode(const gr_tokenizer *t, const gr_template *chat, const json_t *messages, gr_tokens *tokens, gr_error *e);

#endif
