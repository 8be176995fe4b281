import type { Failure } from "../api/client";

/** An error in the server's words, with what helps to find it in its log. */
export function FailureView({ failure }: { failure: Failure }) {
  const details = [
    failure.status && `status ${failure.status}`,
    failure.code,
    failure.param && `field ${failure.param}`,
    failure.requestId,
  ].filter(Boolean);
  return (
    <div class="failure" role="alert">
      <p>{failure.message}</p>
      {failure.status === 401 && <p>Give a valid key at the top of the page.</p>}
      {details.length > 0 && <p class="small">{details.join(" · ")}</p>}
    </div>
  );
}
