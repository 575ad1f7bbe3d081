// Priority of threads that share a core.
#pragma once

namespace octet {

/// The niceness (setpriority(2)) of threads with work that may take longer. Such a thread gets a tenth of a
/// core that it shares with a thread of niceness 0, and all of an idle core.
inline constexpr int kBehindNiceness = 10;

/// From now on this thread gets a core when the threads that compute leave one, and so do threads that it
/// starts. It stays so: a thread must not raise itself again. Nothing happens where the system refuses.
void run_thread_behind();

}  // namespace octet
