#include "scoring.h"

#include <algorithm>
#include <span>

#include "decoder_options.h"
#include "octet/base/error.h"
#include "octet/runtime/log_softmax.h"

namespace octet::generate {

Scoring::Scoring(const DecoderParts& parts, Passes& passes, Arena& arena) : parts_(parts), passes_(passes) {
  if (parts_.options.scored > 0) {
    staging_ = std::make_unique<runtime::Staging>(
        arena, runtime::StagingOptions{.tokens = parts_.core.options().max_tokens,
                                       .labels = parts_.options.scored,
                                       .documents = 2,  // one is padding
                                       .length = parts_.core.options().max_length,
                                       .vocabulary = parts_.options.architecture.vocabulary,
                                       .token_unit = parts_.model.options().token_unit});
  }
}

std::vector<std::vector<double>> Scoring::log_probabilities(
    const std::vector<std::vector<std::int32_t>>& sequences) {
  passes_.require([&] {
    for (const std::vector<std::int32_t>& sequence : sequences) {
      const auto length = static_cast<std::int64_t>(sequence.size());
      if (length > 0 && length <= parts_.options.scored) continue;
      throw Error({.what = "a sequence cannot be scored",
                   .expected = "1 to " + std::to_string(parts_.options.scored) + " tokens",
                   .found = std::to_string(length),
                   .fix = "remove the text, or raise --max-length",
                   .code = ExitCode::usage});
    }
  });
  passes_.take_scales();
  std::vector<std::vector<double>> out;
  while (passes_.goes_on(out.size() < sequences.size())) {
    if (out.size() == sequences.size()) {
      passes_.pass_by();
      continue;
    }
    const std::vector<std::int32_t>& sequence = sequences[out.size()];
    runtime::HostBatch batch;
    runtime::add_document(batch, sequence, sequence);
    out.push_back(runtime::log_probabilities(parts_.core, parts_.model.store(), parts_.model.compute(),
                                             staging_->upload(parts_.model.compute(), batch), batch.targets,
                                             staging_->loss_sum()));
  }
  return out;
}

// Runs a text through the first slot, `piece` tokens at a time. `see` reads the logits of the tokens
// [begin, end).
void Scoring::take_text(const std::vector<std::int32_t>& ids, std::int64_t piece,
                        const std::function<void(std::int64_t begin, std::int64_t end)>& see) {
  check(!parts_.sequences.busy(), "texts are taken between answers");
  parts_.sequences.begin_text(ids);
  try {
    for (std::int64_t begin = 0; begin < std::ssize(ids); begin += piece) {
      const std::int64_t end = std::min(std::ssize(ids), begin + piece);
      passes_.run(passes_.planned(parts_.sequences.next_of_text(piece)));
      see(begin, end);
    }
  } catch (...) {
    parts_.sequences.end_text();
    throw;
  }
  parts_.sequences.end_text();
}

Decoder::Score Scoring::score(const std::vector<std::int32_t>& ids, std::int64_t best) {
  check(parts_.options.score_rows > 0, "the decoder was built for scores");
  passes_.require_ids(ids, parts_.options.capacity);
  Decoder::Score score;
  take_text(ids, parts_.options.score_rows, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < std::min(end, std::ssize(ids) - 1); ++t) {
      const LogProbabilities raw = parts_.choice.log_softmax(static_cast<std::size_t>(t - begin));
      score.logprobs.push_back(raw.of(ids[static_cast<std::size_t>(t) + 1]));
      require_finite(score.logprobs.back());
      score.top.push_back(raw.best(best));
    }
  });
  return score;
}

std::vector<float> Scoring::next_logits(const std::vector<std::int32_t>& prompt) {
  passes_.require_ids(prompt, parts_.options.capacity);
  std::vector<float> last;
  take_text(prompt, std::min(logit_rows(parts_.options), piece_of(parts_.options)),
            [&](std::int64_t begin, std::int64_t end) {
              const std::span<const float> logits =
                  parts_.runner.logits(static_cast<std::size_t>(end - begin - 1));
              last.assign(logits.begin(), logits.end());
            });
  return last;
}

}  // namespace octet::generate
