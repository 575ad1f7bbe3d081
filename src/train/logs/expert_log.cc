#include "logs/expert_log.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "octet/base/error.h"

namespace octet::train {

model::ExpertLoads loads_of_all(comm::Channel& channel, const model::ExpertLoads& own) {
  std::vector<std::int64_t> flat;
  for (const auto& [block, load] : own) {
    flat.insert(flat.end(), load.rows.begin(), load.rows.end());
    flat.push_back(load.dropped);
  }
  const std::size_t size = flat.size() * sizeof(std::int64_t);
  std::vector<std::int64_t> sum(flat.size()), of_rank(flat.size());
  for (const std::string& bytes :
       channel.all_gather_bytes(std::string(reinterpret_cast<const char*>(flat.data()), size))) {
    check(bytes.size() == size, "all ranks have the same experts");
    std::memcpy(of_rank.data(), bytes.data(), size);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += of_rank[i];
  }
  model::ExpertLoads all = own;
  auto from = sum.begin();
  for (auto& [block, load] : all) {
    std::copy_n(from, load.rows.size(), load.rows.begin());
    from += std::ssize(load.rows);
    load.dropped = *from++;
  }
  return all;
}

Json expert_fields(const model::ExpertLoads& loads) {
  Json fields = Json::object();
  for (const auto& [block, load] : loads) {
    const auto rows =
        static_cast<double>(std::accumulate(load.rows.begin(), load.rows.end(), std::int64_t{0}));
    if (rows == 0) continue;
    const auto count = static_cast<double>(load.rows.size());
    double entropy = 0;
    for (const std::int64_t one : load.rows) {
      const double share = static_cast<double>(one) / rows;
      if (share > 0) entropy -= share * std::log(share);
    }
    const auto [smallest, largest] = std::ranges::minmax(load.rows);
    fields["blocks"].push_back(block);
    fields["largest"].push_back(static_cast<double>(largest) * count / rows);
    fields["smallest"].push_back(static_cast<double>(smallest) * count / rows);
    fields["entropy"].push_back(count > 1 ? entropy / std::log(count) : 1.0);
    const auto dropped = static_cast<double>(load.dropped);
    fields["dropped"].push_back(dropped / (rows + dropped));
  }
  return fields;
}

std::string IdleExperts::look(std::int64_t step, const model::ExpertLoads& loads) {
  std::string named;
  for (const auto& [block, load] : loads) {
    std::vector<Expert>& experts = experts_[block];
    // A run that begins or resumes has no statistics of earlier steps.
    if (experts.empty()) experts.resize(load.rows.size(), Expert{.seen = before_ < 0 ? step - 1 : before_});
    for (std::size_t e = 0; e < load.rows.size(); ++e) {
      Expert& expert = experts[e];
      if (load.rows[e] > 0) expert = {.seen = step};
      if (expert.named || step - expert.seen < kSteps) continue;
      expert.named = true;
      named += (named.empty() ? "" : ", ") + std::to_string(e) + " of block " + std::to_string(block);
    }
  }
  before_ = step;
  if (named.empty()) return "";
  return "experts got no token for " + std::to_string(kSteps) + " steps: " + named +
         ". Set output_router_logits: true and a larger router_aux_loss_coef in the model's config.json to "
         "balance them";
}

}  // namespace octet::train
