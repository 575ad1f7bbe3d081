#include "conversation.h"

#include <unistd.h>

#include <cstdio>
#include <iostream>

#include "octet/base/strings.h"
#include "rows.h"

namespace octet::answers {
namespace {

std::string stream(Answerer& answerer, const Question& question, std::uint64_t number) {
  std::string text = answerer.answer(question, number, [](const std::string& piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  std::printf("\n");
  return text;
}

void converse_with_input(Answerer& answerer, const GenerateOptions& o) {
  Question chat;
  chat.system = o.system;
  const bool terminal = ::isatty(STDIN_FILENO) != 0;
  std::uint64_t number = 0;
  std::string line;
  while (true) {
    if (terminal) std::fprintf(stderr, "> ");
    if (!std::getline(std::cin, line)) break;
    if (trim(line).empty()) continue;
    if (!terminal) chat.turns.clear();
    chat.turns.push_back({"user", line});
    chat.turns.push_back({"assistant", stream(answerer, chat, number++)});
  }
}

}  // namespace

void converse(Answerer& answerer, const GenerateOptions& o) {
  std::uint64_t number = 0;
  for (const std::string& question : o.questions) stream(answerer, ask(question, o.system), number++);
  if (o.questions.empty()) converse_with_input(answerer, o);
}

}  // namespace octet::answers
