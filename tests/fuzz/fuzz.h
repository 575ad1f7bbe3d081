// Functions that read input from outside. Each must survive any bytes: it may throw an Error, and nothing
// else. Programs of libFuzzer drive them (-DOCTET_FUZZ=ON, clang). replay_test.cc runs them on the findings,
// which corpus/<name>/ keeps.
#pragma once

#include <string_view>

namespace octet::fuzz {

void tokenizer_json(std::string_view bytes);
void dataset_info(std::string_view bytes);
void rows(std::string_view bytes);
void yaml(std::string_view bytes);
void safetensors(std::string_view bytes);
void config_json(std::string_view bytes);
void jinja(std::string_view bytes);
void manifest(std::string_view bytes);
void run_state(std::string_view bytes);
void memory_part(std::string_view bytes);
void hostfile(std::string_view bytes);
void job_messages(std::string_view bytes);
void incidents(std::string_view bytes);

}  // namespace octet::fuzz
