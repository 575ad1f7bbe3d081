// Tokens per second of a tokenizer on a text with one document per line. compare_tokenizers in this folder
// measures encode_batch of Hugging Face's tokenizers in the same way.
//
//   tokenizer_bench MODEL_FOLDER TEXT_FILE [--threads N] [--repeat N] [--rounds N]
#include <atomic>
#include <chrono>
#include <ctime>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <CLI/CLI.hpp>

#include "octet/base/error.h"
#include "octet/base/files.h"
#include "octet/base/json.h"
#include "octet/base/strings.h"
#include "octet/text/tokenizer.h"

namespace {

// Encodes all lines on so many threads; returns the number of tokens.
std::int64_t encode_all(const octet::text::Tokenizer& tokenizer, const std::vector<std::string>& lines,
                        int threads) {
  constexpr std::size_t kRun = 4;  // documents a thread takes at a time
  std::atomic<std::size_t> next{0};
  std::atomic<std::int64_t> tokens{0};
  const auto work = [&] {
    std::vector<octet::text::TokenId> ids;
    std::int64_t count = 0;
    for (std::size_t begin = next.fetch_add(kRun); begin < lines.size(); begin = next.fetch_add(kRun)) {
      for (std::size_t i = begin; i < std::min(begin + kRun, lines.size()); ++i) {
        ids.clear();
        tokenizer.encode_to(lines[i], ids);
        count += static_cast<std::int64_t>(ids.size());
      }
    }
    tokens += count;
  };
  std::vector<std::thread> pool;
  for (int t = 1; t < threads; ++t) pool.emplace_back(work);
  work();
  for (auto& thread : pool) thread.join();
  return tokens;
}

// Seconds that all threads of this process have computed.
double computed() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace

int main(int argc, char** argv) {
  std::string folder, file;
  int threads = 1, repeat = 1, rounds = 3;
  CLI::App app("Tokens per second of a tokenizer");
  app.add_option("folder", folder, "folder with tokenizer.json")->required();
  app.add_option("file", file, "text, a document a line")->required();
  app.add_option("--threads", threads);
  app.add_option("--repeat", repeat, "how often the text is repeated");
  app.add_option("--rounds", rounds, "the best of so many is printed");
  CLI11_PARSE(app, argc, argv);
  try {
    const auto tokenizer = octet::text::Tokenizer::from_folder(folder);
    const std::string text = octet::read_file(file);
    std::vector<std::string> lines;
    for (int r = 0; r < repeat; ++r) {
      for (auto& line : octet::split(text, '\n')) {
        if (!line.empty()) lines.push_back(std::move(line));
      }
    }
    double best = 0, least = 0;
    std::int64_t tokens = 0;
    for (int round = 0; round < rounds; ++round) {
      const double before = computed();
      const auto start = std::chrono::steady_clock::now();
      tokens = encode_all(tokenizer, lines, threads);
      const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      const double cpu = computed() - before;
      if (round == 0 || seconds < best) best = seconds;
      if (round == 0 || cpu < least) least = cpu;
    }
    std::cout << octet::Json{{"threads", threads},
                             {"tokens", tokens},
                             {"seconds", best},
                             {"tokens_per_s", static_cast<double>(tokens) / best},
                             {"tokens_per_cpu_s", static_cast<double>(tokens) / least},
                             {"mb_per_s", static_cast<double>(text.size()) * repeat / best / 1e6}}
                     .dump()
              << "\n";
  } catch (const octet::Error& e) {
    std::cerr << e.what() << "\n";
    return static_cast<int>(e.code());
  }
}
